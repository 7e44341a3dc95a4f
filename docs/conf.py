"""Sphinx's configuration of the documentation site: `make docs`."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_ext"))

import tf_syncrep

project = "tf_syncrep"
author = "the authors of tf_syncrep"
copyright = "the authors of tf_syncrep. Apache License 2.0"
version = release = tf_syncrep.__version__

extensions = [
    "benchmark_tables",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "markdown_docstrings",
    "mathml",
    "merged_streams",
    "public_names",
    "repository_links",
]
exclude_patterns = ["_ext"]

# What is wrong is an error: `make docs` builds with -W.
nitpicky = True
# Types of Python, TensorFlow and Keras, whose documentation is not at hand here.
nitpick_ignore_regex = [(r"py:.*", r"(?!tfs\b).*")]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

# Tutorials run whenever they are read anew, each in a folder of its own; one that fails
# ends the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"  # what TensorFlow logs when it starts

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "literal"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme = "sphinx_book_theme"
html_title = "tf_syncrep"
html_copy_source = False
html_theme_options = {
    # The search box of the list of contents is enough.
    "navbar_persistent": [],
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
