"""The report: one HTML file with charts, the same essentials as Markdown, and pictures for the README.

``sources.py`` reads baselines, runs and comparisons; ``records.py``, ``history.py`` and ``verdicts.py`` make
flat records of them; the charts are Vega-Lite specifications in ``charts/``, drawn from those records, in the
browser as in a picture.
"""
