"""Every code block of every guide is run by a test, or its page has the reason."""

from __future__ import annotations

from tests.support.pages import CODE, ROOT, blocks, guides

RUN_BY = {
    "README.md": "integration/test_readme.py spark/test_readme.py",
    "backup.md": "integration/test_backup.py",
    "exactly-once.md": "spark/test_pages.py",
    "getting-started.md": "integration/test_cli_getting_started.py spark/test_pages.py",
    "local-clusters.md": "integration/test_local_clusters.py",
    "operating.md": "spark/test_operating_page.py",
    "python-client.md": "integration/test_pages.py",
    "spark.md": "spark/test_pages.py",
    "spark-cluster.md": "spark/test_cluster.py",
    "transactions.md": "integration/test_pages.py",
}
"""Pages with a block that is run, and the tests that run it."""


def test_every_block_is_run_or_says_why_not() -> None:
    to_run = {page.name for page in guides() if any(b.why_not is None for b in blocks(page, *CODE))}
    assert to_run == set(RUN_BY)
    for tests in RUN_BY.values():
        for name in tests.split():
            text = (ROOT / "tests" / name).read_text()
            assert "PAGE" in text or "README" in text, name


def test_the_reasons_are_few() -> None:
    reasons = {b.why_not for page in guides() for b in blocks(page, *CODE)} - {None}
    assert len(reasons) <= 10, sorted(filter(None, reasons))
