"""Rules, model and machine brought together into one explainable plan."""

from kt_core.plan.model import CachePlan, KernelPlan, ModulePlan, Plan, RulePlan

__all__ = ["CachePlan", "KernelPlan", "ModulePlan", "Plan", "RulePlan"]
