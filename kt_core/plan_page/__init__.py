"""The plan as one self-contained HTML page: a tree of modules with devices, kernels, bytes and rules."""

from kt_core.plan_page.page import plan_page
from kt_core.plan_page.tree import Node, plan_tree

__all__ = ["Node", "plan_page", "plan_tree"]
