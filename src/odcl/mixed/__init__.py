"""Hidden groups and differences inside them: a mixture of mixed models on data terms.

rows -> data_terms or gaussian_terms -> quadratics -> search -> mixture_of -> posterior
"""
