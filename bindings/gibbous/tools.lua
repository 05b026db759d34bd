-- tools.lua - the records of what looks at a model or a machine and is itself read when it is first called.

local gb, native = ...
local lazily = native.lazily

native.help_entry = lazily("help", "help_entry")
native.public_names = lazily("help", "public_names")

gb.doctor = native.define("gb.doctor(; json: bool = false) -> boolean: Prints what this machine can do for mixed \z
  precision (CPU features, threads, libraries and their versions, devices, dtypes, memory), each line ok, warning or \z
  error with its cure; json is for machines. True: no line is an error. Example: gb.doctor()", "none",
  lazily("doctor", "doctor"))

gb.amp.audit = native.define("gb.amp.audit(model: module, step: function|tensor, arguments...: any) -> table: Run \z
  one step and print what every op of it ran in: by module and recipe line, the autocast class, dtypes before and \z
  after casts, casts and their bytes, M x N x K of products and whether Tensor Cores can run them or why not, the \z
  largest magnitude, and the shares of zeros, of what 16 bits flush to 0, of subnormal numbers and of infinities. A \z
  summary says where the first value appeared that is not finite, and which static loss scale the gradients ask for. \z
  step is a function, called as step(model, ...), that does a step of training or anything else; or what comes is \z
  tensors, and model(...) runs. A last table { precision =, print = false } opens the scope of a precision around \z
  it, or prints nothing. The step computes what it computes without the audit, to the bit. Returns the report: rows \z
  (phase, module, name, op, of, line, class, why, inputs, outputs, casts, cast_bytes, reused, products, \z
  tensor_cores, obstacle, numbers, calls), casts, cast_bytes, operations, eligible, first_nonfinite, overflowing, \z
  flushing, advice; tostring gives the text. Errors: an audit inside another one, in a step that is captured as a \z
  graph, and a step that yields. Example: local report = gb.amp.audit(model, x, { precision = \"16-mixed\" })",
  "strict", lazily("audit", "audit"))

gb.profile = native.define("gb.profile(fn: function; file?: path, model?: module, rows: count = 15, events: size = \z
  100000, print: bool = true) -> table: Run fn() and print where its time went: by op and phase, by module, by line, \z
  and what lay in memory at most, by category. On CUDA the time of kernels is measured on the device; nothing waits \z
  for it while fn runs. file: a trace too, a JSON file that Perfetto (ui.perfetto.dev) and Chrome open. model names \z
  modules by their place in it, else by their class. rows: of each table, at most; events: of the whole, at most, \z
  further ones are counted. Returns the report: seconds, lost, ops (op, phase, calls, seconds, self, kernel), modules \z
  (module, forward, backward, recompute, kernel), lines (line, the same), memory (bytes by category) and \z
  memory_total; self is without the ops within. tostring gives the text. Errors: a profile inside another one, fn \z
  that yields. Example: gb.profile(function() model(x) end)", "strict", lazily("profile", "profile"))

gb.summary = native.define("gb.summary(model: module, sample: tensor|list; depth?: size, print: bool = true, \z
  precisions?: list) -> table: What a model is made of, and what training it takes. Runs it on sample (the inputs, as \z
  a list where there are several) and prints each module with the shape that it gave, its parameters and its \z
  operations (of products and convolutions, two for a multiply-add); then for each precision (32-true, 16-mixed, \z
  bf16-mixed) the bytes of parameters, gradients, Adam's two states, and what a forward and backward pass kept at \z
  most: activations, casts and scratch tensors, as measured. depth: modules within modules so far. The model, its \z
  gradients, buffers and modes, and the random state are afterwards what they were. Returns the report: rows (name, \z
  class, shapes, parameters, operations, calls), parameters, trainable, operations, memory (by precision). Errors: \z
  inputs that the model does not take. Example: gb.summary(model, x)", "strict", lazily("summary", "summary"))
