"""Saved forms: weight functions, reports and the state of a monitor, each one file on disk."""

from sees_torch.saving.report_form import SavedReport, load_report, save_report
from sees_torch.saving.weight_forms import load_weights, save_weights

__all__ = ["SavedReport", "load_report", "load_weights", "save_report", "save_weights"]
