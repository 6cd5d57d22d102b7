"""Rehearse a training step on a simulated device: report every line that would fail on the real one, in one run.

run                 a rehearsal from beginning to end
scripts             a whole script, for some optimizer steps
result              the Rehearsal and its findings
captured            which objects are state or data, and which objects the step reaches by names in its code
decisions           devices that the program chose earlier, on a machine without the device
sources             what the statements of the program assign
evaluation          the values and devices that its expressions have on a machine with the device
replacement         replaces tensors by stand-ins or copies, and restores the tensors afterwards
restore             restores everything else that the step may change
tensors             the stand-in: a tensor with a shape and a device
device              the dispatch mode: checks and computes every operation, and counts its memory
operators           what an ATen operator takes and returns: devices, dtypes, shapes
function_overrides  torch's Python functions called with the device
runtime             what torch.cuda, torch.accelerator and libraries report about the device
precision           autocast and gradient scalers
concurrency         threads, pools and worker processes of the step
files               what the step saves and loads
file_overlay        what a script writes, and reads of it
provenance          the origin of a tensor, and the current line of the user's code
origins             describes a tensor on the wrong device, and the fix
"""
