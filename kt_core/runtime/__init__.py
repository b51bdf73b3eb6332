"""Carry out a plan and run the model: loading, phases, generation."""

from kt_core.runtime.openmp import let_openmp_sleep

let_openmp_sleep()
