"""Hidden groups and differences inside them: a mixture of mixed models on data terms.

rows -> data_terms (or sites) -> coordinates, quadratics -> search -> download_of -> posterior
"""
