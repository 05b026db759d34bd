-- init.lua - puts the Lua half of the library together: every chunk gets gb and the native functions that recipes do not see, and adds its
-- part to gb. A chunk may use what the chunks before it made.

local gb, native, run = ...

native.classes = {} -- by the name that the reference gives their objects

-- What few recipes use is read when one of its functions is first called, so that a program opens fast: the chunk puts them into native.late.
native.late = {}
local function lazily(chunk, name)
  return function(...)
    if not native.late[name] then run(chunk) end
    return native.late[name](...)
  end
end

native.help_entry = lazily("help", "help_entry")
native.public_names = lazily("help", "public_names")

gb.doctor = native.define("gb.doctor(; json: bool = false) -> boolean: Prints what this machine can do for mixed precision (CPU features, threads, \z
  libraries and their versions, devices, dtypes, memory), each line ok, warning or error with its cure; json is for machines. True: no line is an \z
  error. Example: gb.doctor()", "none", lazily("doctor", "doctor"))

gb.amp.audit = native.define("gb.amp.audit(model: module, step: function|tensor, arguments...: any) -> table: Run one step and print what every op of it \z
  ran in: by module and recipe line, the autocast class, dtypes before and after casts, casts and their bytes, M x N x K of products and whether \z
  Tensor Cores can run them or why not, the largest magnitude, and the shares of zeros, of what 16 bits flush to 0, of subnormal numbers and of \z
  infinities. A summary says where the first value appeared that is not finite, and which static loss scale the gradients ask for. step is a \z
  function, called as step(model, ...), that does a step of training or anything else; or what comes is tensors, and model(...) runs. A last table { \z
  precision =, print = false } opens the scope of a precision around it, or prints nothing. The step computes what it computes without the audit, to \z
  the bit. Returns the report: rows (phase, module, name, op, of, line, class, why, inputs, outputs, casts, cast_bytes, reused, products, \z
  tensor_cores, obstacle, numbers, calls), casts, cast_bytes, operations, eligible, first_nonfinite, overflowing, flushing, advice; tostring gives \z
  the text. Errors: an audit inside another one, in a step that is captured as a graph, and a step that yields. Example: local report = \z
  gb.amp.audit(model, x, { precision = \"16-mixed\" })", "strict", lazily("audit", "audit"))

for _, name in ipairs {
  "nn/module", "nn/init", "nn/layers", "nn/windows", "nn/vision",
  "nn/recurrent", "nn/transformer", "nn/utils", "nn/weights",
  "amp", "numerics", "linalg", "optim", "schedules", "average", "cuda", "data", "io",
  "args", "progress", "test", "seal",
} do
  run(name)
end
