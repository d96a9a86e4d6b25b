"""stopkit.adapters: the providers behind one interface, and their scripted stand-ins.

The third layer: it may import `stopkit.normalizer` and `stopkit`, and neither imports it.  No
provider has landed yet.
"""

from __future__ import annotations

__all__: list[str] = []
