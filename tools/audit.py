"""Ask the OSV database whether a pinned version has a known vulnerability, as pip-audit does.

    python tools/audit.py

Prints what it finds and ends with 1 if there is anything. Where the database cannot be reached it says so, and that
nothing was checked, and ends with 0: `make check` works without a network.
"""

import json
import sys
import urllib.request

from lock import pins

DATABASE = "https://api.osv.dev/v1/querybatch"


def found(names: dict[str, str]) -> dict[str, list[str]]:
    """Return {"name version": ids of vulnerabilities} of those that have any."""
    queries = [{"package": {"name": n, "ecosystem": "PyPI"}, "version": version} for n, version in names.items()]
    request = urllib.request.Request(
        DATABASE, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        results = json.load(answer)["results"]
    pairs = zip(names.items(), results, strict=True)
    return {f"{n} {version}": [each["id"] for each in r["vulns"]] for (n, version), r in pairs if r.get("vulns")}


def main() -> int:
    names = pins()
    try:
        known = found(names)
    except OSError as error:
        print(f"audit: {DATABASE} cannot be reached ({error}): the {len(names)} pinned packages were NOT checked")
        return 0
    for package, ids in known.items():
        print(f"audit: {package} has known vulnerabilities: {', '.join(ids)}")
    print(f"audit: {len(names)} pinned packages checked, {len(known)} with known vulnerabilities")
    return int(bool(known))


if __name__ == "__main__":
    sys.exit(main())
