"""Edit the source of a program so that its rehearsal finds nothing.

edits         what an edit is
candidates    the edits that may mend a finding, by its kind
rewriting     edits applied to a source, with libcst
rounds        edit, rehearse the edited program, keep what mended something
source_files  the files that may be edited, and writing all of them or none
result        what was mended, and what is left with the reason

`rehearsing.evidence` records what an edit needs to know while the step runs.
"""
