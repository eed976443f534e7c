"""Many targets, or one after the other in time, against one source."""

from sees_torch.monitor.alerts import Alerts
from sees_torch.monitor.many import estimate_many
from sees_torch.monitor.observation import Observation
from sees_torch.monitor.shift_monitor import ShiftMonitor

__all__ = ["Alerts", "Observation", "ShiftMonitor", "estimate_many"]
