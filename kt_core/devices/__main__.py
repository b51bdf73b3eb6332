"""Print the devices of this machine as JSON: ``python -m kt_core.devices``.

``kt doctor`` asks in a process of its own, so that neither a broken torch nor a driver that hangs can
take it along.
"""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Write one object to standard output."""
    from kt_core.devices.manager import device_manager

    manager = device_manager()
    found = {
        "devices": [vars(device) for device in manager.devices()],
        "no_devices": manager.absent(),
    }
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
