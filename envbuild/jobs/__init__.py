"""Small jobs that prove that ranks communicate, and the judge of what they report.

This directory is copied whole into every image, so that a bare `apptainer test` gives the verdict of
`envbuild test`: standard library only, Python 3.9 or newer (`envbuild_job.py`: 2.7, too).
"""
