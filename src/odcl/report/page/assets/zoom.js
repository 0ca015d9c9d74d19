// Pictures of the paper's figures: a click or Enter shows them larger.
document.documentElement.classList.add("scripted");
for (const image of document.querySelectorAll(".zoom img")) {
  image.tabIndex = 0;
  const toggle = () => image.classList.toggle("large");
  image.addEventListener("click", toggle);
  image.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
  });
}
