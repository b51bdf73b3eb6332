"""The documentation as kt itself shows it: written pages, generated ones, and how a terminal shows them.

The site is built of the same pages (``website/build.py``), so that there is one text of each.
"""
