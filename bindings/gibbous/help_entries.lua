-- help_entries.lua - made by cmake/reference.lua from the comments above the functions: { signature, description, errors, example }.

local _, native = ...

native.help_texts = {
  ["DataLoader:iter"] = {
    "DataLoader:iter(device?: device; resume: bool = false) -> function",
    "The batches of one epoch from its beginning; the next call begins the next epoch, also where a loop was left by break. With resume the \z
      loop goes on where a checkpoint that was loaded, or a loop that was left, stood. device moves each tensor there. There is one place to \z
      stand, so one loop at a time.",
    nil,
    "for x, y in loader:iter(\"cpu\") do print(x.shape, y.shape) end",
  },
  ["DataLoader:load_state_dict"] = {
    "DataLoader:load_state_dict(state: table)",
    "Go on from where state_dict was asked: the next loop begins there.",
    "a state of another form, a batch that an epoch does not have",
    "loader:load_state_dict(loader:state_dict())",
  },
  ["DataLoader:state_dict"] = {
    "DataLoader:state_dict() -> table",
    "Where the loader stands: saved and restored with a checkpoint.",
    nil,
    "local state = loader:state_dict()",
  },
  ["GradScaler:close"] = {
    "GradScaler:close()",
    "Let go of the scaler now, not when it is collected; using it then is an error.",
    nil,
    "gb.amp.GradScaler():close()",
  },
  ["GradScaler:get_backoff_factor"] = {
    "GradScaler:get_backoff_factor() -> number",
    "What the scale is multiplied by after a skip.",
    nil,
    "print(scaler:get_backoff_factor())",
  },
  ["GradScaler:get_growth_factor"] = {
    "GradScaler:get_growth_factor() -> number",
    "What the scale is multiplied by after growth_interval finite steps.",
    nil,
    "print(scaler:get_growth_factor())",
  },
  ["GradScaler:get_growth_interval"] = {
    "GradScaler:get_growth_interval() -> int",
    "How many finite steps in a row let the scale grow.",
    nil,
    "print(scaler:get_growth_interval())",
  },
  ["GradScaler:get_scale"] = {
    "GradScaler:get_scale() -> number",
    "The scale; 1 when the scaler is disabled, as PyTorch's.",
    nil,
    "print(scaler:get_scale())",
  },
  ["GradScaler:is_enabled"] = { "GradScaler:is_enabled() -> bool", "Does it scale at all?", nil, "print(scaler:is_enabled())" },
  ["GradScaler:load_state_dict"] = {
    "GradScaler:load_state_dict(state: table)",
    "Go on from a state, ours or one that PyTorch wrote.",
    "a state without the numbers, or of a disabled scaler",
    "scaler:load_state_dict(scaler:state_dict())",
  },
  ["GradScaler:report"] = {
    "GradScaler:report() -> string, string",
    "The names of the parameters whose gradients were not finite at the last skip, \"\" when there was none; and from the second skip in a \z
      row on what made the first such value: the op, the recipe's line, whether it is finite at half the scale.",
    nil,
    "print(scaler:report())",
  },
  ["GradScaler:scale"] = {
    "GradScaler:scale(loss: tensors) -> tensor",
    "The loss, or a list of losses, times the scale, in float32; their gradients carry the scale with them.",
    nil,
    "scaler:scale(loss):backward()",
  },
  ["GradScaler:set_backoff_factor"] = {
    "GradScaler:set_backoff_factor(factor: number)",
    "What the scale is multiplied by after a skip.",
    "a factor that is not between 0 and 1",
    "scaler:set_backoff_factor(0.5)",
  },
  ["GradScaler:set_growth_factor"] = {
    "GradScaler:set_growth_factor(factor: number)",
    "What the scale is multiplied by after growth_interval finite steps.",
    "a factor that is not above 1",
    "scaler:set_growth_factor(2)",
  },
  ["GradScaler:set_growth_interval"] = {
    "GradScaler:set_growth_interval(interval: int)",
    "How many finite steps in a row let the scale grow.",
    "an interval below 1",
    "scaler:set_growth_interval(2000)",
  },
  ["GradScaler:state_dict"] = {
    "GradScaler:state_dict() -> table",
    "PyTorch's keys, and the counters that schedules and hysteresis go on from; empty when disabled.",
    nil,
    "local state = scaler:state_dict()",
  },
  ["GradScaler:stats"] = {
    "GradScaler:stats() -> table",
    "scale, steps, skipped, skipped_in_a_row, growth_tracker, last_skipped.",
    nil,
    "print(scaler:stats().skipped)",
  },
  ["GradScaler:step"] = {
    "GradScaler:step(optimizer: optimizer; clip?: number, norm_type: number = 2) -> number",
    "The optimizer's step, unless a gradient is not finite. With clip, the largest norm, all that unscale_, clip_grad_norm_ and step do, bit \z
      for bit, the clip within the update itself: grad is unscaled and clipped afterwards; returns the norm before, on a device as a tensor.",
    "max_skips skips in a row, with the report",
    "scaler:scale(loss):backward() scaler:step(opt) scaler:update()",
  },
  ["GradScaler:unscale_"] = {
    "GradScaler:unscale_(optimizer: optimizer)",
    "Divide the gradients by the scale in place, before they are clipped or read, and measure their 2-norm on the way: clip_grad_norm_ over \z
      the same gradients, untouched since, needs no pass for it.",
    "twice between two updates",
    "scaler:scale(loss):backward() scaler:unscale_(opt)",
  },
  ["GradScaler:update"] = {
    "GradScaler:update(new_scale?: number)",
    "After the steps of an iteration: grow the scale, or back off after a skip.",
    nil,
    "scaler:scale(loss):backward() scaler:step(opt) scaler:update()",
  },
  ["LayerNorm:add"] = {
    "LayerNorm:add(x: tensor, residual: tensor) -> tensor, tensor",
    "x + residual and its norm in one pass: returns the norm, then the sum.",
    nil,
    "local y, sum = gb.nn.LayerNorm(4):add(x, x)",
  },
  ["Module:apply"] = {
    "Module:apply(fn: function) -> module",
    "Run fn on every module inside, then on this one.",
    nil,
    "model:apply(function(m) m.training = true end)",
  },
  ["Module:bfloat16"] = { "Module:bfloat16() -> module", "Floating parameters and buffers in bfloat16.", nil, "gb.nn.Linear(2, 2):bfloat16()" },
  ["Module:buffers"] = {
    "Module:buffers() -> list",
    "The buffers: tensors that belong to the module but are not trained.",
    nil,
    "print(#model:buffers())",
  },
  ["Module:children"] = { "Module:children() -> list", "The modules held directly.", nil, "print(#model:children())" },
  ["Module:cpu"] = { "Module:cpu() -> module", "Parameters and buffers on the CPU.", nil, "model:cpu()" },
  ["Module:cuda"] = {
    "Module:cuda(index: count = 0) -> module",
    "Parameters and buffers on a GPU.",
    "there is none",
    "if gb.cuda.is_available() then gb.nn.Linear(2, 2):cuda() end",
  },
  ["Module:describe"] = {
    "Module:describe() -> string",
    "The tree of modules with parameter counts and dtypes, as tostring shows it.",
    nil,
    "print(model:describe())",
  },
  ["Module:double"] = { "Module:double() -> module", "Floating parameters and buffers in float64.", nil, "gb.nn.Linear(2, 2):double()" },
  ["Module:eval"] = { "Module:eval() -> module", "Training off here and in every module inside.", nil, "model:eval() model:train()" },
  ["Module:extend"] = {
    "Module:extend(name: string) -> class",
    "A new class below this one; init(...) and forward(...) make it a layer.",
    nil,
    "local Net = gb.nn.Module:extend(\"Net\") function Net:forward(y) return y * 2 end print(Net()(x))",
  },
  ["Module:extra"] = {
    "Module:extra() -> string",
    "What a layer says of itself between parentheses; layers override it.",
    nil,
    "print(gb.nn.Linear(2, 3):extra())",
  },
  ["Module:float"] = { "Module:float() -> module", "Floating parameters and buffers in float32.", nil, "gb.nn.Linear(2, 2):float()" },
  ["Module:forward"] = {
    "Module:forward(arguments...: any) -> any",
    "What calling the module computes; classes define their own.",
    "a class without one",
    "local y = model:forward(x)",
  },
  ["Module:half"] = { "Module:half() -> module", "Floating parameters and buffers in float16.", nil, "gb.nn.Linear(2, 2):half()" },
  ["Module:init"] = { "Module:init(arguments...: any)", "What a class does with the arguments of its constructor; classes define their own." },
  ["Module:load_state_dict"] = {
    "Module:load_state_dict(state: table; strict: bool = true) -> list, list",
    "Copy state into the module. Missing and unexpected names are an error unless strict is false; returns both lists. What is shared may \z
      come under any of its names, or under several with the same bits. Everything is checked before anything is changed.",
    "tensors of another shape; a shared one with two values",
    "model:load_state_dict(model:state_dict())",
  },
  ["Module:modules"] = { "Module:modules() -> list", "The module itself and every one inside it.", nil, "print(#model:modules())" },
  ["Module:named_buffers"] = {
    "Module:named_buffers() -> function",
    "The buffers, as an iterator of name, tensor.",
    nil,
    "for name, b in model:named_buffers() do print(name, b.shape) end",
  },
  ["Module:named_modules"] = {
    "Module:named_modules() -> function",
    "The module itself, whose name is \"\", and every one inside it, as an iterator of name, module.",
    nil,
    "for name, m in model:named_modules() do print(name, m) end",
  },
  ["Module:named_parameters"] = {
    "Module:named_parameters() -> function",
    "The parameters, as an iterator of name, tensor. Names are those of PyTorch's files and count from 0 (\"blocks.0.weight\" is \z
      model.blocks[1].weight).",
    nil,
    "for name, p in model:named_parameters() do print(name, p.shape) end",
  },
  ["Module:parameters"] = {
    "Module:parameters() -> list",
    "The parameters, in order of first assignment; their names ride along for optimizers and reports.",
    nil,
    "local opt = gb.optim.AdamW(gb.nn.Linear(2, 2):parameters(), { lr = 1e-3 })",
  },
  ["Module:precision"] = {
    "Module:precision(name?: \"float32\"|\"float16\"|\"bfloat16\"|\"inherit\") -> any",
    "Pin what this module runs in when it is called, inside an autocast scope or outside: \"float32\" (autocast off, 16-bit arguments made \z
      float32), \"float16\" or \"bfloat16\" (an autocast scope). Modules inside go along unless they are pinned themselves. \"inherit\" takes \z
      the pin away. Returns the module; without a name, what it is pinned to, or nil.",
    nil,
    "print(model:precision())",
  },
  ["Module:register_buffer"] = {
    "Module:register_buffer(name: string, tensor?: tensor; persistent: bool = true)",
    "A tensor that belongs to the module but is not trained; persistent = false keeps it out of state_dict.",
    nil,
    "gb.nn.Identity():register_buffer(\"mean\", gb.zeros(1))",
  },
  ["Module:register_forward_hook"] = {
    "Module:register_forward_hook(fn: function) -> function",
    "fn(module, inputs, outputs...) after forward; a non-nil result replaces the output. Returns a function that removes it.",
    nil,
    "local remove = model:register_forward_hook(function(m, inputs, y) print(y.shape) end) remove()",
  },
  ["Module:register_parameter"] = {
    "Module:register_parameter(name: string, parameter?: tensor)",
    "A parameter under a name that is computed.",
    nil,
    "gb.nn.Identity():register_parameter(\"scale\", gb.ones(1))",
  },
  ["Module:requires_grad_"] = {
    "Module:requires_grad_(on: bool = true) -> module",
    "Gradients by all parameters are wanted (or not).",
    nil,
    "gb.nn.Linear(2, 2):requires_grad_(false)",
  },
  ["Module:share"] = {
    "Module:share(other: module) -> module",
    "Use other's parameters and buffers as one's own (tied weights): both must be of one class and shape.",
    "a module of another class",
    "gb.nn.Linear(2, 2):share(gb.nn.Linear(2, 2))",
  },
  ["Module:state_dict"] = {
    "Module:state_dict() -> table",
    "Parameters and persistent buffers by name, detached, sharing memory with the module. Names are those of PyTorch's files and count from \z
      0 (\"blocks.0.weight\" is model.blocks[1].weight); what is shared has its first name only.",
    nil,
    "local state = model:state_dict()",
  },
  ["Module:to"] = {
    "Module:to(targets...: any) -> module",
    "Move or convert floating parameters and buffers, keeping their identity. Takes a device, a dtype, or a precision object, in any order.",
    "a dtype that is not floating",
    "model:to(\"cpu\", gb.amp.precision(\"32-true\"))",
  },
  ["Module:train"] = {
    "Module:train(mode: bool = true) -> module",
    "Training on (or off) here and in every module inside: dropout drops, batch norms follow the batch.",
    nil,
    "model:train()",
  },
  ["Module:zero_grad"] = { "Module:zero_grad()", "Forget the gradients of all parameters.", nil, "model:zero_grad()" },
  ["ModuleDict:items"] = {
    "ModuleDict:items() -> function",
    "An iterator of name, module, in the order of keys; so does pairs(dict).",
    nil,
    "for name, module in gb.nn.ModuleDict({ a = gb.nn.ReLU() }):items() do print(name, module) end",
  },
  ["ModuleDict:keys"] = {
    "ModuleDict:keys() -> list",
    "The names, in order of first assignment (sorted, for those the constructor got).",
    nil,
    "for _, name in ipairs(gb.nn.ModuleDict({ a = gb.nn.ReLU() }):keys()) do print(name) end",
  },
  ["ModuleList:append"] = {
    "ModuleList:append(module: module) -> module",
    "One more module at the end.",
    nil,
    "gb.nn.ModuleList():append(gb.nn.ReLU())",
  },
  ["Optimizer:add_param_group"] = {
    "Optimizer:add_param_group(group: table)",
    "One more group { params = list, names = list or nil, and hyperparameters of its own }.",
    "parameters that another optimizer has",
    "opt:add_param_group { params = gb.nn.Linear(2, 2):parameters(), lr = 1e-4 }",
  },
  ["Optimizer:close"] = {
    "Optimizer:close()",
    "Let go of the optimizer and of its state now, not when it is collected; its parameters stay, and another optimizer can take them.",
    nil,
    "gb.optim.SGD(gb.nn.Linear(2, 2):parameters()):close()",
  },
  ["Optimizer:load_state_dict"] = {
    "Optimizer:load_state_dict(state: tree)",
    "Go on from what state_dict gave; everything is checked before anything is changed.",
    "a state of another kind, or of other parameters",
    "opt:load_state_dict(opt:state_dict())",
  },
  ["Optimizer:state_dict"] = {
    "Optimizer:state_dict() -> table",
    "State by parameter, in order of adoption (copies), and the hyperparameters of every group.",
    nil,
    "local state = opt:state_dict()",
  },
  ["Optimizer:step"] = {
    "Optimizer:step()",
    "Change the parameters by their gradients; those without a gradient stay as they are.",
    nil,
    "loss:backward() opt:step()",
  },
  ["Optimizer:zero_grad"] = { "Optimizer:zero_grad()", "Forget the gradients of all parameters.", nil, "opt:zero_grad()" },
  ["Schedule:factor"] = {
    "Schedule:factor(t: int) -> number",
    "The factor on the initial lr at step t (from 0): warmup first, then the schedule's own.",
    nil,
    "print(schedule:factor(0))",
  },
  ["Schedule:get_last_lr"] = { "Schedule:get_last_lr() -> list", "The rates in force, one per group.", nil, "print(schedule:get_last_lr()[1])" },
  ["Schedule:load_state_dict"] = {
    "Schedule:load_state_dict(state: tree)",
    "Go on from what state_dict gave.",
    "a state without a count",
    "schedule:load_state_dict(schedule:state_dict())",
  },
  ["Schedule:state_dict"] = {
    "Schedule:state_dict() -> table",
    "The step it stands at and the initial rates.",
    nil,
    "local state = schedule:state_dict()",
  },
  ["Schedule:step"] = { "Schedule:step()", "One more step happened: the groups get their new lr.", nil, "schedule:step()" },
  ["Sequential:append"] = {
    "Sequential:append(module: module) -> module",
    "One more module at the end.",
    "what is not a module",
    "gb.nn.Sequential():append(gb.nn.ReLU())",
  },
  ["ctx:save_for_backward"] = {
    "ctx:save_for_backward(xs...: any)",
    "In the forward of a gb.Function: tensors that backward needs; changing them in place before it is an error then.",
    nil,
    "gb.Function { forward = function(ctx, x) ctx:save_for_backward(x) return x * x end, backward = function(ctx, g) return g * 2 * \z
      ctx:saved_tensors() end }",
  },
  ["ctx:saved_tensors"] = { "ctx:saved_tensors() -> tensors", "In the backward of a gb.Function: what forward saved, as several values." },
  ["dataset:close"] = {
    "dataset:close()",
    "Let go of the dataset now, not when it is collected.",
    nil,
    "gb.data.TensorDataset(gb.rand(8, 4)):close()",
  },
  ["dataset:get"] = {
    "dataset:get(i: position) -> tensors",
    "The tensors of sample i (from 1, -1 is the last).",
    nil,
    "local dataset = gb.data.TensorDataset(gb.rand(8, 4)) local row = dataset:get(1)",
  },
  ["dataset:subset"] = {
    "dataset:subset(first: int|list, last?: int) -> dataset",
    "The samples first .. last, both included, from 1; or those of a list of positions.",
    nil,
    "local half = gb.data.TensorDataset(gb.rand(8, 4)):subset(1, 4)",
  },
  ["expect:to_be"] = { "expect:to_be(other?: any)", "The same value.", nil, "gb.test.expect(1 + 1):to_be(2)" },
  ["expect:to_be_close"] = {
    "expect:to_be_close(other: any, tolerance: number = 1e-6)",
    "A tensor or list whose elements all lie within tolerance (absolute plus relative) of another's; NaN equals NaN.",
    nil,
    "gb.test.expect(gb.ones(2)):to_be_close({ 1, 1 })",
  },
  ["expect:to_be_near"] = {
    "expect:to_be_near(other: number, tolerance: number = 1e-6)",
    "Numbers within tolerance (absolute plus relative).",
    nil,
    "gb.test.expect(0.1 + 0.2):to_be_near(0.3)",
  },
  ["expect:to_be_truthy"] = { "expect:to_be_truthy()", "Neither nil nor false.", nil, "gb.test.expect(1):to_be_truthy()" },
  ["expect:to_equal_bits"] = {
    "expect:to_equal_bits(other: tensor)",
    "The same dtype, shape and bits.",
    nil,
    "gb.test.expect(x):to_equal_bits(x:clone())",
  },
  ["expect:to_fail"] = {
    "expect:to_fail(text: string = \"\")",
    "Calling the value raises an error whose text contains `text`.",
    nil,
    "gb.test.expect(function() error(\"no\") end):to_fail(\"no\")",
  },
  ["expect:to_have_shape"] = {
    "expect:to_have_shape(sizes?: sizes)",
    "Shape equal to a list.",
    nil,
    "gb.test.expect(gb.zeros(2, 3)):to_have_shape(2, 3)",
  },
  ["gb.Function"] = {
    "gb.Function(; forward: function, backward: function, name: string = \"function\") -> function",
    "A function that gradients pass through: forward(ctx, ...), backward(ctx, gradients...), which returns a gradient for each tensor \z
      argument, and a name.",
    nil,
    "local double = gb.Function { name = \"double\", forward = function(ctx, x) return x * 2 end, backward = function(ctx, g) return g * 2 \z
      end }",
  },
  ["gb._VERSION"] = { "gb._VERSION -> string", "The name and the version.", nil, "print(gb._VERSION)" },
  ["gb.amp.GradScaler"] = {
    "gb.amp.GradScaler(precision?: precision; enabled: bool = true, init_scale: number = 65536, growth_factor: number = 2, backoff_factor: \z
      number = 0.5, growth_interval: int = 2000, min_scale?: number, max_scale?: number, max_skips: int = 64, hysteresis: int = 1, per_loss: \z
      bool = false, scale?: number|function) -> scaler",
    "What scales losses so that float16 gradients do not vanish, and skips steps whose gradients are not finite. precision (of \z
      amp.precision) says whether one is needed; a disabled scaler passes everything on. scale is a number (static) or a function of the step \z
      (scheduled).",
    "at step, after max_skips skips in a row",
    "local scaler = gb.amp.GradScaler(gb.amp.precision(\"16-mixed\"))",
  },
  ["gb.amp.audit"] = {
    "gb.amp.audit(model: module, step: function|tensor, arguments...: any) -> table",
    "Run one step and print what every op of it ran in: by module and recipe line, the autocast class, dtypes before and after casts, casts \z
      and their bytes, M x N x K of products and whether Tensor Cores can run them or why not, the largest magnitude, and the shares of zeros, \z
      of what 16 bits flush to 0, of subnormal numbers and of infinities. A summary says where the first value appeared that is not finite, \z
      and which static loss scale the gradients ask for. step is a function, called as step(model, ...), that does a step of training or \z
      anything else; or what comes is tensors, and model(...) runs. A last table { precision =, print = false } opens the scope of a precision \z
      around it, or prints nothing. The step computes what it computes without the audit, to the bit. Returns the report: rows (phase, module, \z
      name, op, of, line, class, why, inputs, outputs, casts, cast_bytes, reused, products, tensor_cores, obstacle, numbers, calls), casts, \z
      cast_bytes, operations, eligible, first_nonfinite, overflowing, flushing, advice; tostring gives the text.",
    "an audit inside another one, in a step that is captured as a graph, and a step that yields",
    "local report = gb.amp.audit(model, x, { precision = \"16-mixed\" })",
  },
  ["gb.amp.autocast"] = {
    "gb.amp.autocast(precision?: precision|dtype|function|table, fn?: any, arguments...: any) -> any",
    "Inside it each op runs in the dtype of its autocast class. precision: nothing (bfloat16), a dtype's name, { dtype =, enabled = }, or \z
      what amp.precision gave. With a function: calls it with the arguments that follow and returns what it returns; without: a scope.",
    "a dtype that is not float16 or bfloat16",
    "local y = gb.amp.autocast({ dtype = \"float16\" }, function() return model(x) end)",
  },
  ["gb.amp.cache_info"] = {
    "gb.amp.cache_info() -> table",
    "bytes and peak_bytes of the 16-bit weight copies that parameters keep.",
    nil,
    "print(gb.amp.cache_info().bytes)",
  },
  ["gb.amp.disable"] = {
    "gb.amp.disable(fn?: function, arguments...: any) -> any",
    "Inside it autocast is off; forms as no_grad's.",
    nil,
    "local y = gb.amp.disable(function() return model(x) end)",
  },
  ["gb.amp.dtype"] = {
    "gb.amp.dtype() -> string",
    "What ops of the class `lower` run in here, or nil where autocast is off.",
    nil,
    "print(gb.amp.dtype())",
  },
  ["gb.amp.grad"] = {
    "gb.amp.grad(loss: tensors, inputs: tensors; scaler?: scaler, grad_outputs?: tensors, retain_graph?: bool, create_graph?: bool, \z
      allow_unused?: bool) -> any",
    "Gradients of loss by inputs, unscaled float32, for penalties: options are those of gb.grad, and scaler.",
    nil,
    "local w = gb.ones(2, { requires_grad = true }) local g = gb.amp.grad((w * w):sum(), w, { scaler = scaler, create_graph = true })",
  },
  ["gb.amp.is_enabled"] = { "gb.amp.is_enabled() -> bool", "Is autocast on here?", nil, "print(gb.amp.is_enabled())" },
  ["gb.amp.numerics"] = {
    "gb.amp.numerics(x: tensor|module|any; format?: \"float16\"|\"bfloat16\"|\"float32\"|\"float64\") -> numerics",
    "What a floating format would make of a tensor's elements, exact at every boundary. The format is the scope's dtype unless it is named, \z
      else float16. A record: numel, dtype, format, amax and amin (the largest finite magnitude, and the smallest above 0), shares from 0 to 1 \z
      of elements that are zero, infinite, nan, and of the others that rounding to the format makes 0 (flushed), subnormal or infinite \z
      (overflowed); the same as integers in counts; exponents[e], how many lie from 2^e up to 2^(e+1). Of a module, or a table of tensors by \z
      name: a list of { name =, value = record, grad = record or nil }, without what is not floating. print shows either. Waits for the \z
      device.",
    "a tensor of integers",
    "print(gb.amp.numerics(gb.randn(1000) * 1e-6))",
  },
  ["gb.amp.plan"] = {
    "gb.amp.plan(model: module) -> list",
    "Print what each module of the model runs in and why. Returns the rows, { name =, class =, precision = (nil: the scope's), from = }.",
    nil,
    "gb.amp.plan(model)",
  },
  ["gb.amp.policy"] = {
    "gb.amp.policy(rules: tree) -> policy",
    "Rules { pattern, precision }, which policy:apply pins modules by.",
    "a rule of another form",
    "local policy = gb.amp.policy { { \"head%..*\", \"float32\" } }",
  },
  ["gb.amp.precision"] = {
    "gb.amp.precision(name: any) -> precision",
    "One object that says what to convert, what scope to open and whether a scaler is needed: 32-true, 16-mixed, bf16-mixed, 16-true, \z
      bf16-true, or another spelling of one. The environment variable GIBBOUS_AMP overrides the argument, so that a recipe can be tried in \z
      another precision from outside; tostring shows it.",
    "an unknown name",
    "local precision = gb.amp.precision(\"bf16-mixed\")",
  },
  ["gb.amp.set_autocast"] = {
    "gb.amp.set_autocast(precision: bool|precision|dtype|table)",
    "Autocast from here on: false, true (bfloat16), or what autocast takes; for the prompt.",
    nil,
    "gb.amp.set_autocast(false)",
  },
  ["gb.anomaly"] = {
    "gb.anomaly(fn?: function, arguments...: any) -> any",
    "Inside it mistakes are told where they were made, at the price of speed. Devices wait after every op, so that what a kernel found wrong \z
      is the error of that op, on the recipe's own line; and backward stops at the first gradient that is NaN, with the op and the line that \z
      called it. Forms as no_grad's.",
    "capturing a graph inside",
    "gb.anomaly(function() local x = gb.ones(2, { requires_grad = true }) x:sum():backward() end)",
  },
  ["gb.arange"] = {
    "gb.arange(first?: number, last: number, step?: number, options?: options) -> tensor",
    "first, first + step, ... below last. First is 0 and step 1 where they are left out: it is data, so it counts from 0. Whole numbers give \z
      int64.",
    "a step of 0",
    "local x = gb.arange(10)",
  },
  ["gb.args"] = {
    "gb.args(list: list, from?: table) -> table",
    "The options of a recipe, declared as a list of { name, default, help }, from the command line (or `from`, a list of strings): --name \z
      value, --name=value, --name and --no-name for booleans; --help prints the list. A row of a number may carry least = number, below which \z
      a value is refused; one of a string writes = true: it names a file that will be written, \"\" none, and is tried at once.",
    "an unknown option, a value of another type than the default's, a file that cannot be written",
    "local args = gb.args({ { \"lr\", 1e-3, \"learning rate\" } }, { \"--lr\", \"0.01\" })",
  },
  ["gb.best_device"] = {
    "gb.best_device() -> string",
    "The one that the program around has chosen, else cuda where there is one, else cpu.",
    nil,
    "local x = gb.zeros(2, { device = gb.best_device() })",
  },
  ["gb.clock"] = { "gb.clock() -> number", "Seconds of a clock that only goes forward, for measuring.", nil, "local started = gb.clock()" },
  ["gb.cuda.device_count"] = { "gb.cuda.device_count() -> int", "How many CUDA devices can be used.", nil, "print(gb.cuda.device_count())" },
  ["gb.cuda.empty_cache"] = { "gb.cuda.empty_cache()", "Give memory that no tensor uses back to the device.", nil, "gb.cuda.empty_cache()" },
  ["gb.cuda.graph"] = {
    "gb.cuda.graph(step: function, examples: tensors) -> graph",
    "An object to call as step(...) is, which does what the step does to tensors, in one launch: the first call runs the step as it is, the \z
      second captures it, the others replay it on the values they are given. The examples say the shapes and dtypes of the inputs. What \z
      changes from step to step is followed: learning rate and weight decay, random numbers, the scale. A replay runs no Lua: schedules, \z
      printing and reading belong outside, and the results are the same tensors again, with new values.",
    "another shape, reading a value in the step, no CUDA device",
    "if gb.cuda.is_available() then local double = gb.cuda.graph(function(v) return v * 2 end, { gb.ones(2) }) end",
  },
  ["gb.cuda.is_available"] = {
    "gb.cuda.is_available() -> bool, string",
    "Can a CUDA device be used? Where not, also why.",
    nil,
    "print(gb.cuda.is_available())",
  },
  ["gb.cuda.max_memory_allocated"] = {
    "gb.cuda.max_memory_allocated(device?: int|device) -> int",
    "The most bytes that were in tensors on the device at once.",
    nil,
    "print(gb.cuda.max_memory_allocated())",
  },
  ["gb.cuda.memory_allocated"] = {
    "gb.cuda.memory_allocated(device?: int|device) -> int",
    "Bytes in tensors on the device.",
    nil,
    "print(gb.cuda.memory_allocated())",
  },
  ["gb.cuda.memory_summary"] = {
    "gb.cuda.memory_summary(device?: int|device) -> string",
    "Where the device's memory is, for people: MiB in tensors now and at the peak, by category; what the pool has of the system, what of \z
      that is cached and what belongs to captured graphs; what uploads pass through; what the whole device has left; and how often memory was \z
      asked for.",
    nil,
    "if gb.cuda.is_available() then print(gb.cuda.memory_summary()) end",
  },
  ["gb.cuda.properties"] = {
    "gb.cuda.properties(device?: int|device) -> table",
    "What the device is: name, major and minor (of its compute capability), multiprocessors, driver, runtime, total_memory and free_memory \z
      in bytes. The device is \"cuda:N\" or N; else the default one, where that is a CUDA device, or cuda:0.",
    "there is no CUDA device",
    "if gb.cuda.is_available() then print(gb.cuda.properties().name) end",
  },
  ["gb.cuda.reset_peak_memory_stats"] = {
    "gb.cuda.reset_peak_memory_stats()",
    "max_memory_allocated begins again from what is held now.",
    nil,
    "gb.cuda.reset_peak_memory_stats()",
  },
  ["gb.cuda.synchronize"] = {
    "gb.cuda.synchronize(device?: int|device)",
    "Wait until the device has done all it was asked.",
    "what a kernel found wrong in data, by its op; what else failed on the device since the last wait",
    "if gb.cuda.is_available() then gb.cuda.synchronize() end",
  },
  ["gb.data.DataLoader"] = {
    "gb.data.DataLoader(dataset: any; batch_size: size = 1, shuffle: bool = false, drop_last: bool = false, prefetch: int = 2, seed?: int, \z
      workers: int = 0, batches?: size) -> loader",
    "Batches of a dataset, native or a table with `#` and get(i). prefetch: batches read ahead (native datasets). seed: gb's own unless \z
      given. batches = n (native datasets): an epoch is n batches of samples drawn at random, with replacement.",
    nil,
    "local loader = gb.data.DataLoader(gb.data.TensorDataset(gb.rand(8, 4)), { batch_size = 4, shuffle = true })",
  },
  ["gb.data.TensorDataset"] = {
    "gb.data.TensorDataset(xs...: tensor) -> dataset",
    "Sample i is row i of each tensor.",
    "different numbers of rows",
    "local dataset = gb.data.TensorDataset(gb.rand(8, 4), gb.arange(8))",
  },
  ["gb.data.idx"] = {
    "gb.data.idx(images: path, labels?: path; mean: number = 0, std: number = 1) -> dataset",
    "Files in MNIST's format, gzipped or not: images scaled to 0 .. 1, then normalised; labels as int64.",
    "a file that is not of this format, or damaged",
  },
  ["gb.data.mnist"] = {
    "gb.data.mnist(folder: path; mean?: number, std?: number) -> dataset, dataset",
    "The four standard files of MNIST in a folder (gzipped or not): the training and the test set. Where only the 10,000 test images are \z
      there, the first 8,000 train and the last 2,000 test, and a line says so.",
    "files that are not there",
  },
  ["gb.data.text"] = {
    "gb.data.text(path: path; kind: \"characters\"|\"bytes\" = \"characters\", vocabulary?: string) -> text",
    "A file as a sequence of ids, one for each character, or byte; the vocabulary is a string of the characters in the order of their ids.",
    "a character that the vocabulary lacks",
  },
  ["gb.data.tokens"] = {
    "gb.data.tokens(path: path; dtype: \"uint8\"|\"uint16\"|\"int32\" = \"uint16\") -> tokens",
    "A file of token ids, read window by window; with 16 bits also one with llm.c's header.",
  },
  ["gb.device"] = {
    "gb.device(name: device) -> string",
    "The full name of a device, such as cuda:0 for cuda.",
    "a device that is not there, with the reason",
    "print(gb.device(\"cpu\"))",
  },
  ["gb.devices"] = { "gb.devices() -> list", "The names of the devices that are there.", nil, "print(table.concat(gb.devices(), \", \"))" },
  ["gb.doctor"] = {
    "gb.doctor(; json: bool = false) -> boolean",
    "Prints what this machine can do for mixed precision (CPU features, threads, libraries and their versions, devices, dtypes, memory), \z
      each line ok, warning or error with its cure; json is for machines. True: no line is an error.",
    nil,
    "gb.doctor()",
  },
  ["gb.empty"] = {
    "gb.empty(sizes: ints, options?: options) -> tensor",
    "Memory for a shape, with whatever it holds.",
    nil,
    "local x = gb.empty(2, 3)",
  },
  ["gb.empty_cache"] = { "gb.empty_cache()", "Give memory that no tensor uses back to the system.", nil, "gb.empty_cache()" },
  ["gb.empty_like"] = {
    "gb.empty_like(x: tensor, options?: options) -> tensor",
    "Memory in the shape, dtype, device and memory order of x.",
    nil,
    "local y = gb.empty_like(x)",
  },
  ["gb.enable_grad"] = {
    "gb.enable_grad(fn?: function, arguments...: any) -> any",
    "Inside it ops are recorded for gradients; forms as no_grad's.",
    nil,
    "local y = gb.enable_grad(function() return model(x) end)",
  },
  ["gb.eye"] = {
    "gb.eye(rows: int, columns?: int, options?: options) -> tensor",
    "Ones on the diagonal of a matrix of zeros.",
    nil,
    "local x = gb.eye(3)",
  },
  ["gb.from_bytes"] = {
    "gb.from_bytes(bytes: string, dtype: string, shape?: list, options?: options) -> tensor",
    "A new tensor whose memory is a copy of the string: row-major, little-endian. Without a shape it has one dimension. options: device.",
    "a string that is longer or shorter than the shape, a byte of a bool that is neither 0 nor 1",
    "local x = gb.from_bytes(string.pack(\"<fff\", 1, 2, 3), \"float32\")",
  },
  ["gb.full"] = {
    "gb.full(shape: list, value: number, options?: options) -> tensor",
    "value everywhere; the shape is a list. An integer gives int64, a boolean bool.",
    nil,
    "local x = gb.full({ 2, 3 }, 0.5)",
  },
  ["gb.full_like"] = {
    "gb.full_like(x: tensor, value: number, options?: options) -> tensor",
    "value everywhere, in the shape, dtype, device and memory order of x.",
    nil,
    "local y = gb.full_like(x, 0.5)",
  },
  ["gb.get_default_device"] = {
    "gb.get_default_device() -> string",
    "Where tensors are made that are not told otherwise.",
    nil,
    "print(gb.get_default_device())",
  },
  ["gb.get_default_dtype"] = {
    "gb.get_default_dtype() -> string",
    "The dtype that new floating tensors have.",
    nil,
    "print(gb.get_default_dtype())",
  },
  ["gb.get_float32_matmul_precision"] = {
    "gb.get_float32_matmul_precision() -> string",
    "\"highest\" or \"high\".",
    nil,
    "print(gb.get_float32_matmul_precision())",
  },
  ["gb.get_num_threads"] = { "gb.get_num_threads() -> int", "How many threads run the kernels.", nil, "print(gb.get_num_threads())" },
  ["gb.get_rng_state"] = {
    "gb.get_rng_state() -> table",
    "The random stream, which is two integers: { seed =, offset = }.",
    nil,
    "local state = gb.get_rng_state()",
  },
  ["gb.grad"] = {
    "gb.grad(outputs: tensors, inputs: tensors; grad_outputs?: tensors, retain_graph?: bool, create_graph: bool = false, allow_unused: bool \z
      = false) -> any",
    "The gradient of outputs by one tensor, or the list of those by a list; leaves' .grad stays as it is. retain_graph is create_graph \z
      unless given; with allow_unused an input that was not used gives nil.",
    nil,
    "local w = gb.ones(2, { requires_grad = true }) local g = gb.grad((w * w):sum(), w)",
  },
  ["gb.interrupt"] = {
    "gb.interrupt(on: bool = true)",
    "The next op fails with \"interrupted\", and every one after it, until gb.interrupt(false).",
    nil,
    "gb.interrupt(false)",
  },
  ["gb.io.json_decode"] = {
    "gb.io.json_decode(text: string) -> any",
    "The Lua value of JSON text: arrays count from 1, integers stay integers.",
    "text that is not JSON, with the place",
    "local value = gb.io.json_decode('{\"a\": [1, 2]}')",
  },
  ["gb.io.json_encode"] = {
    "gb.io.json_encode(value) -> string",
    "A Lua value as JSON text.",
    "a value that JSON cannot hold",
    "print(gb.io.json_encode { a = { 1, 2 } })",
  },
  ["gb.io.load_checkpoint"] = {
    "gb.io.load_checkpoint(path: string, parts: table) -> any",
    "Read a checkpoint into the parts given, restore the random state, and return `extra`. All or nothing: what cannot be read changes no \z
      part, and where a part turns its state down, those before it are put back; for that their states are copied to the CPU's memory first. \z
      Parts without state_dict come last, since they cannot be put back.",
    "parts that the file lacks or that turn their state down, a file that is damaged or no checkpoint",
    "local path = os.tmpname() gb.io.save_checkpoint(path, { model = model }) gb.io.load_checkpoint(path, { model = model }) \z
      os.remove(path)",
  },
  ["gb.io.save_checkpoint"] = {
    "gb.io.save_checkpoint(path: string, parts: table)",
    "Write the state of every named part: anything with state_dict (model, optimizer, scaler, schedule, loader), and `extra`, a plain table. \z
      The random state is always saved. The file appears whole or not at all.",
    "a part without state_dict, a value that cannot be saved",
    "local path = os.tmpname() gb.io.save_checkpoint(path, { model = model, optimizer = opt, extra = { epoch = 1 } }) os.remove(path)",
  },
  ["gb.is_grad_enabled"] = { "gb.is_grad_enabled() -> bool", "Are ops recorded for gradients here?", nil, "print(gb.is_grad_enabled())" },
  ["gb.is_oom"] = {
    "gb.is_oom(message?: any) -> bool",
    "Is this the error of an allocation that failed, the engine's or Lua's?",
    nil,
    "local ok, why = pcall(gb.zeros, 2) if not ok and gb.is_oom(why) then gb.empty_cache() end",
  },
  ["gb.is_recomputing"] = {
    "gb.is_recomputing() -> bool",
    "Is this the second run of a function given to gb.recompute?",
    nil,
    "print(gb.is_recomputing())",
  },
  ["gb.is_tensor"] = { "gb.is_tensor(value?: any) -> bool", "Is value a tensor that was not freed?", nil, "print(gb.is_tensor(gb.zeros(2)))" },
  ["gb.last_error"] = {
    "gb.last_error() -> table",
    "The engine's last failure: { code = \"ESHAPE\", op = \"matmul\", message = }, or nil.",
    nil,
    "local failure = gb.last_error()",
  },
  ["gb.linspace"] = {
    "gb.linspace(first: number, last: number, steps: int, options?: options) -> tensor",
    "steps numbers at equal distances, both ends included.",
    nil,
    "local x = gb.linspace(0, 1, 11)",
  },
  ["gb.load"] = {
    "gb.load(path: string) -> table, table, table",
    "The tensors of a safetensors file by name, and its metadata. Tensors of a dtype that the engine does not have (F8_E4M3, I16, C64, ...) \z
      are left out: a line is printed that names them and the cure, asking the table for one by its name is an error that says the same, and \z
      the third table describes them: { name = { dtype =, shape =, message = } }.",
    "a file that is damaged or of another format, which is named where it is known (a .pt, a zip, a pickle, GGUF, HDF5, ...); one of which \z
      no tensor can be loaded",
    "local path = os.tmpname() gb.save(path, { x = x }) local tensors = gb.load(path) os.remove(path)",
  },
  ["gb.manual_seed"] = {
    "gb.manual_seed(seed: int)",
    "Begin the random stream anew from seed: the same seed gives the same bits. It seeds math.random too, whose state no checkpoint can \z
      keep; gb.random draws from the stream.",
    nil,
    "gb.manual_seed(1)",
  },
  ["gb.memory_stats"] = {
    "gb.memory_stats(device?: device) -> table",
    "Bytes in tensors now and at the peak, by category, and what the pool holds of the system's memory, of one device or of all together: \z
      current, peak (tables by category), current_total, peak_total, reserved, peak_reserved, allocations, system_allocations.",
    nil,
    "print(gb.memory_stats().peak_total)",
  },
  ["gb.meshgrid"] = {
    "gb.meshgrid(xs...: tensor) -> tensors",
    "Each vector spread over the grid of all, the first along dimension 1.",
    nil,
    "local x, y = gb.meshgrid(gb.arange(3), gb.arange(4))",
  },
  ["gb.nn.AdaptiveAvgPool2d"] = {
    "gb.nn.AdaptiveAvgPool2d(size: ints) -> module",
    "Means over windows chosen so that the result has this size.",
    nil,
    "local y = gb.nn.AdaptiveAvgPool2d(1)(gb.rand(2, 1, 8, 8))",
  },
  ["gb.nn.AvgPool2d"] = {
    "gb.nn.AvgPool2d(kernel: ints; stride?: ints, padding: ints = 0) -> module",
    "The mean of each window of x [n, c, h, w]; stride is kernel unless given.",
    nil,
    "local y = gb.nn.AvgPool2d(2)(gb.rand(2, 1, 8, 8))",
  },
  ["gb.nn.BCELoss"] = {
    "gb.nn.BCELoss(; weight?: tensor, reduction: string = \"mean\") -> module",
    "-(y log x + (1 - y) log(1 - x)) of probabilities.",
    "inside an autocast scope; BCEWithLogitsLoss is safe there",
    "local loss = gb.nn.BCELoss()(x:sigmoid(), gb.zeros_like(x))",
  },
  ["gb.nn.BCEWithLogitsLoss"] = {
    "gb.nn.BCEWithLogitsLoss(; weight?: tensor, pos_weight?: number, reduction: string = \"mean\") -> module",
    "Binary cross-entropy of logits, without overflow.",
    nil,
    "local loss = gb.nn.BCEWithLogitsLoss()(x, gb.zeros_like(x))",
  },
  ["gb.nn.BatchNorm1d"] = {
    "gb.nn.BatchNorm1d(features: size; eps: number = 1e-5, momentum: number = 0.1, affine: bool = true, track_running_stats: bool = true) -> \z
      module",
    "Normalise each channel of x [n, c] or [n, c, l] over the batch; by the running statistics when not training.",
    nil,
    "local y = gb.nn.BatchNorm1d(4)(x)",
  },
  ["gb.nn.BatchNorm2d"] = {
    "gb.nn.BatchNorm2d(features: size; eps: number = 1e-5, momentum: number = 0.1, affine: bool = true, track_running_stats: bool = true) -> \z
      module",
    "Normalise each channel of x [n, c, h, w] over the batch; by the running statistics when not training.",
    nil,
    "local y = gb.nn.BatchNorm2d(1)(gb.rand(2, 1, 8, 8))",
  },
  ["gb.nn.Conv2d"] = {
    "gb.nn.Conv2d(inputs: size, outputs: size, kernel: ints; stride: ints = 1, padding: ints = 0, dilation: ints = 1, groups: size = 1, \z
      bias: bool = true, activation: \"none\"|\"relu\" = \"none\", dtype?: dtype) -> module",
    "2-D convolution of x [n, inputs, h, w].",
    "groups that do not divide the channels",
    "local y = gb.nn.Conv2d(1, 8, 3, { padding = 1 })(gb.rand(2, 1, 8, 8))",
  },
  ["gb.nn.CrossEntropyLoss"] = {
    "gb.nn.CrossEntropyLoss(; weight?: tensor, ignore_index: int = -100, label_smoothing: number = 0, reduction: string = \"mean\") -> \z
      module",
    "-log softmax(x)[target] of logits x [n, classes, ...]; targets are class indices from 0.",
    nil,
    "local loss = gb.nn.CrossEntropyLoss()(x, gb.zeros(4, { dtype = \"int64\" }))",
  },
  ["gb.nn.Dropout"] = {
    "gb.nn.Dropout(p: number = 0.5) -> module",
    "In training, zero each element with probability p and scale the rest by 1 / (1 - p).",
    "p outside 0 .. 1",
    "local y = gb.nn.Dropout(0.1)(x)",
  },
  ["gb.nn.ELU"] = { "gb.nn.ELU(alpha: number = 1;) -> module", "x where positive, else alpha * (exp(x) - 1).", nil, "local y = gb.nn.ELU()(x)" },
  ["gb.nn.Embedding"] = {
    "gb.nn.Embedding(rows: size, size: size; padding_idx?: int, dtype?: dtype) -> module",
    "Rows of a trained table picked by integers from 0. padding_idx: a token id, from 0, whose row is zero and gets no gradient.",
    nil,
    "local y = gb.nn.Embedding(10, 4)(gb.arange(3))",
  },
  ["gb.nn.Flatten"] = {
    "gb.nn.Flatten(first: dim = 2, last: dim = -1) -> module",
    "The dimensions first .. last made one; the batch, dimension 1, stays unless told otherwise.",
    nil,
    "local y = gb.nn.Flatten()(gb.rand(2, 1, 8, 8))",
  },
  ["gb.nn.GELU"] = {
    "gb.nn.GELU(approximate: \"none\"|\"tanh\" = \"none\";) -> module",
    "x * Phi(x), by erf, or by tanh with approximate = \"tanh\".",
    nil,
    "local y = gb.nn.GELU(\"tanh\")(x)",
  },
  ["gb.nn.Identity"] = { "gb.nn.Identity() -> module", "Its input.", nil, "local y = gb.nn.Identity()(x)" },
  ["gb.nn.KLDivLoss"] = {
    "gb.nn.KLDivLoss(; log_target: bool = false, reduction: string = \"mean\") -> module",
    "target * (log target - x) for log-probabilities x; reduction may be \"batchmean\" too.",
    nil,
    "local loss = gb.nn.KLDivLoss()(x:log_softmax(-1), x:softmax(-1))",
  },
  ["gb.nn.L1Loss"] = {
    "gb.nn.L1Loss(; reduction: string = \"mean\") -> module",
    "|x - target|.",
    nil,
    "local loss = gb.nn.L1Loss()(x, gb.zeros_like(x))",
  },
  ["gb.nn.LayerNorm"] = {
    "gb.nn.LayerNorm(shape: ints; eps: number = 1e-5, affine: bool = true, bias: bool = true, out: \"float32\"|\"autocast\" = \"float32\", \z
      dtype?: dtype) -> module",
    "Normalise the last dimensions, of these sizes, then scale and shift. out: the dtype of the result under autocast, float32 or the \z
      scope's.",
    nil,
    "local y = gb.nn.LayerNorm(4)(x)",
  },
  ["gb.nn.LeakyReLU"] = {
    "gb.nn.LeakyReLU(slope: number = 0.01;) -> module",
    "x where positive, else slope * x.",
    nil,
    "local y = gb.nn.LeakyReLU(0.1)(x)",
  },
  ["gb.nn.Linear"] = {
    "gb.nn.Linear(inputs: size, outputs: size; bias: bool = true, activation: string = \"none\", dtype?: dtype) -> module",
    "y = x @ weight^T + bias over the last dimension; weight [outputs, inputs].",
    nil,
    "local y = gb.nn.Linear(4, 2)(x)",
  },
  ["gb.nn.LogSoftmax"] = {
    "gb.nn.LogSoftmax(dim: dim = -1;) -> module",
    "x - log(sum(exp(x))) along dim.",
    nil,
    "local y = gb.nn.LogSoftmax(-1)(x)",
  },
  ["gb.nn.MLP"] = {
    "gb.nn.MLP(inputs: size, hidden: size; outputs?: size, bias: bool = true, activation: string = \"gelu_tanh\", dtype?: dtype) -> module",
    "linear, activation, linear in one op; outputs is inputs unless given.",
    nil,
    "local y = gb.nn.MLP(4, 16)(x)",
  },
  ["gb.nn.MSELoss"] = {
    "gb.nn.MSELoss(; reduction: string = \"mean\") -> module",
    "(x - target)^2.",
    nil,
    "local loss = gb.nn.MSELoss()(x, gb.zeros_like(x))",
  },
  ["gb.nn.MaxPool2d"] = {
    "gb.nn.MaxPool2d(kernel: ints; stride?: ints, padding: ints = 0) -> module",
    "The largest element of each window of x [n, c, h, w]; stride is kernel unless given.",
    nil,
    "local y = gb.nn.MaxPool2d(2)(gb.rand(2, 1, 8, 8))",
  },
  ["gb.nn.Module"] = {
    "gb.nn.Module(...) -> module",
    "The class that every layer and model descends from: nn.Module:extend(name) makes a class, class(...) a module, module(...) calls its \z
      forward. Parameters and modules assigned to its fields are discovered.",
    nil,
    "local Net = gb.nn.Module:extend(\"Net\") function Net:init() self.head = gb.nn.Linear(4, 2) end",
  },
  ["gb.nn.ModuleDict"] = {
    "gb.nn.ModuleDict(dict?: table) -> module",
    "Modules by name, dict.name; it has no forward of its own.",
    nil,
    "local dict = gb.nn.ModuleDict { first = gb.nn.Linear(4, 4) }",
  },
  ["gb.nn.ModuleList"] = {
    "gb.nn.ModuleList(list?: list) -> module",
    "A list of modules, list[i] from 1; it has no forward of its own.",
    nil,
    "local list = gb.nn.ModuleList { gb.nn.Linear(4, 4), gb.nn.Linear(4, 2) }",
  },
  ["gb.nn.MultiheadAttention"] = {
    "gb.nn.MultiheadAttention(size: size, heads: size; bias: bool = true, dropout: number = 0, is_causal: bool = false, dtype?: dtype) -> \z
      module",
    "Self attention over x [batch, time, size]: one projection to query, key and value, heads, one projection back; called as module(x, \z
      mask).",
    "heads that do not divide the size",
    "local y = gb.nn.MultiheadAttention(8, 2, { is_causal = true })(gb.rand(1, 5, 8))",
  },
  ["gb.nn.NLLLoss"] = {
    "gb.nn.NLLLoss(; weight?: tensor, ignore_index: int = -100, reduction: string = \"mean\") -> module",
    "-x[target] of log-probabilities.",
    nil,
    "local loss = gb.nn.NLLLoss()(x:log_softmax(-1), gb.zeros(4, { dtype = \"int64\" }))",
  },
  ["gb.nn.Parameter"] = {
    "gb.nn.Parameter(tensor: tensor, requires_grad: bool = true) -> tensor",
    "A tensor that modules discover and optimizers train. Takes over the tensor given.",
    nil,
    "local weight = gb.nn.Parameter(gb.zeros(2, 3))",
  },
  ["gb.nn.RMSNorm"] = {
    "gb.nn.RMSNorm(shape: ints; eps: number = 1e-6, affine: bool = true, out: \"float32\"|\"autocast\" = \"float32\", dtype?: dtype) -> \z
      module",
    "Divide the last dimensions, of these sizes, by their root mean square, then scale. out: as in LayerNorm.",
    nil,
    "local y = gb.nn.RMSNorm(4)(x)",
  },
  ["gb.nn.ReLU"] = { "gb.nn.ReLU() -> module", "max(x, 0).", nil, "local y = gb.nn.ReLU()(x)" },
  ["gb.nn.Sequential"] = {
    "gb.nn.Sequential(modules...: module) -> module",
    "Modules one after another.",
    nil,
    "local model = gb.nn.Sequential(gb.nn.Linear(4, 8), gb.nn.ReLU(), gb.nn.Linear(8, 2))",
  },
  ["gb.nn.SiLU"] = { "gb.nn.SiLU() -> module", "x * sigmoid(x).", nil, "local y = gb.nn.SiLU()(x)" },
  ["gb.nn.Sigmoid"] = { "gb.nn.Sigmoid() -> module", "1 / (1 + exp(-x)).", nil, "local y = gb.nn.Sigmoid()(x)" },
  ["gb.nn.SmoothL1Loss"] = {
    "gb.nn.SmoothL1Loss(; beta: number = 1, reduction: string = \"mean\") -> module",
    "Squared below beta, absolute above.",
    nil,
    "local loss = gb.nn.SmoothL1Loss()(x, gb.zeros_like(x))",
  },
  ["gb.nn.Softmax"] = { "gb.nn.Softmax(dim: dim = -1;) -> module", "exp(x) / sum(exp(x)) along dim.", nil, "local y = gb.nn.Softmax(-1)(x)" },
  ["gb.nn.Softplus"] = { "gb.nn.Softplus(beta: number = 1;) -> module", "log(1 + exp(beta * x)) / beta.", nil, "local y = gb.nn.Softplus()(x)" },
  ["gb.nn.Tanh"] = { "gb.nn.Tanh() -> module", "The hyperbolic tangent.", nil, "local y = gb.nn.Tanh()(x)" },
  ["gb.nn.init.calculate_gain"] = {
    "gb.nn.init.calculate_gain(nonlinearity: string, slope?: number) -> number",
    "The gain of an activation (LeCun's rule); leaky_relu takes its slope.",
    "an activation without one",
    "print(gb.nn.init.calculate_gain(\"relu\"))",
  },
  ["gb.nn.init.constant_"] = {
    "gb.nn.init.constant_(t: tensor, value: number) -> tensor",
    "Every element becomes value.",
    nil,
    "gb.nn.init.constant_(x, 0.5)",
  },
  ["gb.nn.init.kaiming_normal_"] = {
    "gb.nn.init.kaiming_normal_(t: tensor; a: number = 0, mode: \"fan_in\"|\"fan_out\" = \"fan_in\", nonlinearity: string = \"leaky_relu\") \z
      -> tensor",
    "He et al. 2015: normal, with standard deviation gain / sqrt(fan); options as kaiming_uniform_'s.",
    "fewer than 2 dimensions",
    "gb.nn.init.kaiming_normal_(x)",
  },
  ["gb.nn.init.kaiming_uniform_"] = {
    "gb.nn.init.kaiming_uniform_(t: tensor; a: number = 0, mode: \"fan_in\"|\"fan_out\" = \"fan_in\", nonlinearity: string = \"leaky_relu\") \z
      -> tensor",
    "He et al. 2015: uniform, with standard deviation gain / sqrt(fan); a is the slope.",
    "fewer than 2 dimensions",
    "gb.nn.init.kaiming_uniform_(x, { nonlinearity = \"relu\" })",
  },
  ["gb.nn.init.normal_"] = {
    "gb.nn.init.normal_(t: tensor, mean: number = 0, std: number = 1) -> tensor",
    "Normal random numbers.",
    nil,
    "gb.nn.init.normal_(x, 0, 0.02)",
  },
  ["gb.nn.init.ones_"] = { "gb.nn.init.ones_(t: tensor) -> tensor", "Every element becomes 1.", nil, "gb.nn.init.ones_(x)" },
  ["gb.nn.init.orthogonal_"] = {
    "gb.nn.init.orthogonal_(t: tensor, gain: number = 1) -> tensor",
    "Orthonormal rows or columns (Saxe et al. 2013), by Gram-Schmidt done twice, which is orthogonal to rounding.",
    "fewer than 2 dimensions",
    "gb.nn.init.orthogonal_(x)",
  },
  ["gb.nn.init.trunc_normal_"] = {
    "gb.nn.init.trunc_normal_(t: tensor, mean: number = 0, std: number = 1, low: number = -2, high: number = 2) -> tensor",
    "Normal random numbers within [low, high]: those outside are drawn again.",
    nil,
    "gb.nn.init.trunc_normal_(x)",
  },
  ["gb.nn.init.uniform_"] = {
    "gb.nn.init.uniform_(t: tensor, low: number = 0, high: number = 1) -> tensor",
    "Uniform random numbers in [low, high).",
    nil,
    "gb.nn.init.uniform_(x)",
  },
  ["gb.nn.init.xavier_normal_"] = {
    "gb.nn.init.xavier_normal_(t: tensor, gain: number = 1) -> tensor",
    "Glorot, Bengio 2010: normal, with variance 2 / (fan_in + fan_out).",
    "fewer than 2 dimensions",
    "gb.nn.init.xavier_normal_(x)",
  },
  ["gb.nn.init.xavier_uniform_"] = {
    "gb.nn.init.xavier_uniform_(t: tensor, gain: number = 1) -> tensor",
    "Glorot, Bengio 2010: uniform, with variance 2 / (fan_in + fan_out).",
    "fewer than 2 dimensions",
    "gb.nn.init.xavier_uniform_(x)",
  },
  ["gb.nn.init.zeros_"] = { "gb.nn.init.zeros_(t: tensor) -> tensor", "Every element becomes 0.", nil, "gb.nn.init.zeros_(x)" },
  ["gb.nn.is_module"] = { "gb.nn.is_module(value?: any) -> bool", "Is value a module?", nil, "print(gb.nn.is_module(model))" },
  ["gb.nn.library_class"] = {
    "gb.nn.library_class(name: string, calls: bool = false) -> class",
    "A class of the library: its intermediate results may be dropped as soon as the next layer has read them, so forward must keep none of \z
      its arguments. calls: forward calls modules that it holds. Sets nn[name].",
  },
  ["gb.nn.utils.clip_grad_norm_"] = {
    "gb.nn.utils.clip_grad_norm_(parameters: tensors, max_norm: number, norm_type: number = 2, error_if_nonfinite: bool = false) -> number",
    "Scale the gradients so that their norm together is at most max_norm; returns the norm before, on a device as a tensor, so that nothing \z
      waits for it. Where it is inf or NaN and no scaler skips the step, gradients become 0 or NaN, as in PyTorch.",
    "such a norm, where error_if_nonfinite is true",
    "gb.nn.utils.clip_grad_norm_(model:parameters(), 1.0)",
  },
  ["gb.nn.utils.clip_grad_value_"] = {
    "gb.nn.utils.clip_grad_value_(parameters: tensors, value: number)",
    "Limit each element of the gradients to -value .. value.",
    nil,
    "gb.nn.utils.clip_grad_value_(model:parameters(), 0.5)",
  },
  ["gb.no_grad"] = {
    "gb.no_grad(fn?: function, arguments...: any) -> any",
    "Inside it nothing is recorded for gradients. With a function: calls it with the arguments that follow and returns what it returns; \z
      without: a scope, which :close() or a to-be-closed variable ends.",
    nil,
    "local y = gb.no_grad(function() return model(x) end)",
  },
  ["gb.on_stop"] = {
    "gb.on_stop(fn?: function; grace: number = 10)",
    "When a stop is asked for, fn runs between two steps of training, for at most grace seconds, and then the recipe ends. gb.on_stop(nil) \z
      interrupts at once again. Lasts as long as the chunk that runs.",
    nil,
    "gb.on_stop(function() gb.save(\"stopped.safetensors\", model:state_dict()) end, { grace = 5 })",
  },
  ["gb.ones"] = { "gb.ones(sizes: ints, options?: options) -> tensor", "Ones of a shape.", nil, "local x = gb.ones(2, 3)" },
  ["gb.ones_like"] = {
    "gb.ones_like(x: tensor, options?: options) -> tensor",
    "Ones in the shape, dtype, device and memory order of x.",
    nil,
    "local y = gb.ones_like(x)",
  },
  ["gb.optim.Adam"] = {
    "gb.optim.Adam(params: any; lr?: number, betas?: list, eps?: number, weight_decay?: number, maximize?: bool) -> optimizer",
    "Adam (Kingma, Ba 2015). Defaults: lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, maximize = false.",
    nil,
    "local opt = gb.optim.Adam(gb.nn.Linear(2, 2):parameters(), { lr = 1e-3 })",
  },
  ["gb.optim.AdamW"] = {
    "gb.optim.AdamW(params: any; lr?: number, betas?: list, eps?: number, weight_decay?: number, maximize?: bool) -> optimizer",
    "Adam with decoupled weight decay (Loshchilov, Hutter 2019). Defaults: lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = \z
      0.01, maximize = false.",
    nil,
    "local opt = gb.optim.AdamW(gb.nn.Linear(2, 2):parameters(), { lr = 3e-4 })",
  },
  ["gb.optim.SGD"] = {
    "gb.optim.SGD(params: any; lr?: number, momentum?: number, dampening?: number, weight_decay?: number, nesterov?: bool, maximize?: bool) \z
      -> optimizer",
    "Stochastic gradient descent over a list of tensors, or of groups { params =, lr =, ... }. Defaults: lr = 1e-3, momentum = 0, dampening \z
      = 0, weight_decay = 0, nesterov = false, maximize = false.",
    nil,
    "local opt = gb.optim.SGD(gb.nn.Linear(2, 2):parameters(), { lr = 0.1, momentum = 0.9 })",
  },
  ["gb.optim.lr.Constant"] = {
    "gb.optim.lr.Constant(optimizer: optimizer; warmup: number = 0) -> schedule",
    "The initial lr, after a warmup: in that many steps the rate rises from lr / warmup; every schedule has it.",
    nil,
    "local schedule = gb.optim.lr.Constant(opt, { warmup = 10 })",
  },
  ["gb.optim.lr.Cosine"] = {
    "gb.optim.lr.Cosine(optimizer: optimizer; steps: number, last: number = 0, warmup: number = 0) -> schedule",
    "Half a cosine from 1 to factor last over steps steps (Loshchilov, Hutter 2017, without restarts); warmup comes first, outside steps.",
    nil,
    "local schedule = gb.optim.lr.Cosine(opt, { steps = 100, warmup = 10 })",
  },
  ["gb.optim.lr.Lambda"] = {
    "gb.optim.lr.Lambda(optimizer: optimizer; fn: function, warmup: number = 0) -> schedule",
    "fn(step) is the factor.",
    nil,
    "local schedule = gb.optim.lr.Lambda(opt, { fn = function(t) return 0.9 ^ t end })",
  },
  ["gb.optim.lr.Linear"] = {
    "gb.optim.lr.Linear(optimizer: optimizer; steps: number, first: number = 1, last: number = 0, warmup: number = 0) -> schedule",
    "From factor first to factor last over steps steps.",
    nil,
    "local schedule = gb.optim.lr.Linear(opt, { steps = 100 })",
  },
  ["gb.plot"] = {
    "gb.plot(points: tensor|list; width: size = 64, height: size = 12, title?: string, quiet: bool = false) -> string",
    "Draw numbers as a curve. Returns the text; prints it unless quiet.",
    nil,
    "gb.plot({ 3, 2, 1 }, { title = \"loss\" })",
  },
  ["gb.progress"] = {
    "gb.progress(total: count, title: string = \"\"; unit?: string, unit_size?: number, interval: number = 10) -> progress",
    "A bar over total steps on a terminal, one plain line per interval elsewhere. unit and unit_size say what a step is worth, for example \z
      \"tokens\" and 768; interval is in seconds, between plain lines.",
    nil,
    "local bar = gb.progress(0, \"epoch 1\") bar:close()",
  },
  ["gb.rand"] = { "gb.rand(sizes: ints, options?: options) -> tensor", "Uniform random numbers in [0, 1).", nil, "local x = gb.rand(2, 3)" },
  ["gb.rand_like"] = {
    "gb.rand_like(x: tensor, options?: options) -> tensor",
    "Uniform random numbers in [0, 1), in the shape, dtype, device and memory order of x.",
    nil,
    "local y = gb.rand_like(x)",
  },
  ["gb.randint"] = {
    "gb.randint(low?: int, high: int, shape: list, options?: options) -> tensor",
    "Random integers low .. high - 1 as int64; data, so low is 0 unless it is given.",
    nil,
    "local x = gb.randint(10, { 2, 3 })",
  },
  ["gb.randn"] = {
    "gb.randn(sizes: ints, options?: options) -> tensor",
    "Normal random numbers of mean 0 and deviation 1.",
    nil,
    "local x = gb.randn(2, 3)",
  },
  ["gb.randn_like"] = {
    "gb.randn_like(x: tensor, options?: options) -> tensor",
    "Normal random numbers in the shape, dtype, device and memory order of x.",
    nil,
    "local y = gb.randn_like(x)",
  },
  ["gb.randperm"] = {
    "gb.randperm(n: int, options?: options) -> tensor",
    "0 .. n-1 in random order, as int64.",
    nil,
    "local order = gb.randperm(10)",
  },
  ["gb.recompute"] = {
    "gb.recompute(fn: function, arguments...: any) -> any",
    "What fn(...) gives, but of what it computes only the tensors among its arguments are kept; backward runs it again, in the autocast \z
      scope and with the random numbers of this call. fn must compute the same each time: tensors that it takes from elsewhere (upvalues, \z
      tables) and modules' train or eval mode must still be as they were. Counters that a second run must not move ask gb.is_recomputing(). It \z
      cannot yield, and gives at most four floating tensors.",
    nil,
    "local y = gb.recompute(model, x)",
  },
  ["gb.reset_peak_memory_stats"] = {
    "gb.reset_peak_memory_stats()",
    "The peaks of memory_stats become what is held now.",
    nil,
    "gb.reset_peak_memory_stats()",
  },
  ["gb.save"] = {
    "gb.save(path: string, tensors: table, options?: table)",
    "A table of tensors by name, as safetensors. options: metadata, a table of strings. The file appears whole or not at all.",
    nil,
    "local path = os.tmpname() gb.save(path, model:state_dict()) os.remove(path)",
  },
  ["gb.seed"] = { "gb.seed() -> int", "The seed of the random stream.", nil, "print(gb.seed())" },
  ["gb.set_default_device"] = {
    "gb.set_default_device(device: device)",
    "Where tensors are made that are not told otherwise.",
    nil,
    "gb.set_default_device(\"cpu\")",
  },
  ["gb.set_default_dtype"] = {
    "gb.set_default_dtype(dtype: dtype)",
    "The dtype that new floating tensors have; float32 at first.",
    "a dtype that is not floating",
    "gb.set_default_dtype(\"float32\")",
  },
  ["gb.set_deterministic"] = {
    "gb.set_deterministic(value: bool)",
    "Whether only kernels that give the same bits each time may run, as is so from the start. With false the gradients of 16-bit attention \z
      on CUDA come from cuDNN, which is faster and adds them up in an order that changes.",
    nil,
    "gb.set_deterministic(true)",
  },
  ["gb.set_float32_matmul_precision"] = {
    "gb.set_float32_matmul_precision(name: \"highest\"|\"high\")",
    "\"highest\", or \"high\": matmul, linear, mlp, conv2d and attention, and their gradients, round float32 operands to 10 bits of mantissa \z
      (TF32) and sum in float32.",
    nil,
    "gb.set_float32_matmul_precision(\"highest\")",
  },
  ["gb.set_grad_enabled"] = {
    "gb.set_grad_enabled(on: bool)",
    "Recording for gradients on or off from here on, for the prompt.",
    nil,
    "gb.set_grad_enabled(true)",
  },
  ["gb.set_num_threads"] = {
    "gb.set_num_threads(threads: int)",
    "How many threads run the kernels; results do not depend on it.",
    "fewer than 1",
    "gb.set_num_threads(2)",
  },
  ["gb.set_printoptions"] = {
    "gb.set_printoptions(; precision?: int, threshold?: int, edge_items?: int, line_width?: int, scientific?: bool|\"auto\")",
    "How tensors are printed: precision in digits, threshold the elements that are shown in full.",
    nil,
    "gb.set_printoptions { precision = 4 }",
  },
  ["gb.set_rng_state"] = {
    "gb.set_rng_state(; seed: int, offset: int)",
    "Go on from where get_rng_state was asked.",
    nil,
    "gb.set_rng_state(gb.get_rng_state())",
  },
  ["gb.tensor"] = {
    "gb.tensor(value, options?: options) -> tensor",
    "A copy of what value holds: a number, a boolean, nested lists, or a tensor, which loses its history. Integers give int64, one float \z
      among them the default dtype. options: dtype, device, requires_grad.",
    "lists of different lengths or depths",
    "local x = gb.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = \"float32\" })",
  },
  ["gb.test.describe"] = {
    "gb.test.describe(name: string, fn: function)",
    "A group of cases.",
    nil,
    "gb.test.describe(\"sum\", function() end)",
  },
  ["gb.test.expect"] = {
    "gb.test.expect(values...: any) -> expect",
    "What a case expects of a value, the first of those that are given.",
    nil,
    "gb.test.expect(1 + 1):to_be(2)",
  },
  ["gb.test.finish"] = {
    "gb.test.finish()",
    "Print the count, in the form that the runner adds up, and end with an error when something failed.",
  },
  ["gb.test.help_entry"] = {
    "gb.test.help_entry(what?: any) -> table",
    "What help() knows of a public name, or of a function or class: name, signature, doc, example, errors, and of an op also calls, shapes, \z
      dtypes, autocast, derivative; or nil and the nearest name.",
    nil,
    "print(gb.test.help_entry(\"relu\").doc)",
  },
  ["gb.test.it"] = {
    "gb.test.it(name: string, fn: function)",
    "One case. An error inside fails it, with its message.",
    nil,
    "gb.test.it(\"adds\", function() gb.test.expect(1 + 1):to_be(2) end)",
  },
  ["gb.test.ops"] = {
    "gb.test.ops() -> list",
    "The table of ops: rows { name, family, kind, autocast, derivative, signature, doc, where, public }.",
    nil,
    "print(#gb.test.ops())",
  },
  ["gb.test.program"] = {
    "gb.test.program() -> string",
    "The executable that runs this script: it stands before its own options.",
    nil,
    "print(gb.test.program())",
  },
  ["gb.test.public_names"] = {
    "gb.test.public_names() -> list",
    "Every name that recipes can reach, sorted: rows { name =, value =, op = (the row of the op it is, if it is one) }.",
    nil,
    "print(#gb.test.public_names())",
  },
  ["gb.test.records"] = {
    "gb.test.records() -> list",
    "The texts of all records of public functions, then of each its sandbox level (0 none, 1 files, 2 strict), in turn.",
    nil,
    "print(gb.test.records()[1])",
  },
  ["gb.time"] = {
    "gb.time(fn: function, arguments...: any) -> number, any",
    "The seconds that fn(...) took, devices waited for before and after, and what it returned.",
    nil,
    "local seconds, y = gb.time(model, x)",
  },
  ["gb.to_bytes"] = {
    "gb.to_bytes(x: tensor) -> string",
    "The elements of x as a string, row-major and little-endian whatever its layout and device are.",
    "a string that would be longer than the limit on Lua's memory",
    "local text = gb.to_bytes(gb.tensor({ 72, 105 }, { dtype = \"uint8\" }))",
  },
  ["gb.version"] = { "gb.version -> string", "The version, such as \"0.1.0\".", nil, "print(gb.version)" },
  ["gb.zeros"] = {
    "gb.zeros(sizes: ints, options?: options) -> tensor",
    "Zeros of a shape, given as numbers or as one list. options: dtype, device, requires_grad.",
    nil,
    "local x = gb.zeros(2, 3, { dtype = \"float16\" })",
  },
  ["gb.zeros_like"] = {
    "gb.zeros_like(x: tensor, options?: options) -> tensor",
    "Zeros in the shape, dtype, device and memory order of x.",
    nil,
    "local y = gb.zeros_like(x)",
  },
  ["graph:replay"] = {
    "graph:replay(inputs...: any) -> any",
    "What calling the graph does: the step on these inputs, replayed once it is captured.",
    nil,
    "if gb.cuda.is_available() then local y = gb.cuda.graph(function(v) return v * 2 end, { gb.ones(2) }):replay(gb.ones(2)) end",
  },
  ["hook:close"] = {
    "hook:close()",
    "Let go of the handle; the hook stays.",
    nil,
    "gb.ones(2, { requires_grad = true }):register_hook(print):close()",
  },
  ["hook:remove"] = {
    "hook:remove()",
    "The function that register_hook was given is called no more.",
    nil,
    "local hook = gb.ones(2, { requires_grad = true }):register_hook(print) hook:remove()",
  },
  ["numerics:advise"] = {
    "numerics:advise() -> number",
    "The largest power of two, 2^127 at most, by which elements may be multiplied so that the largest exponent stays two below the format's: \z
      for gradients, a static loss scale. nil where no element is finite and above 0.",
    nil,
    "print(gb.amp.numerics(gb.rand(9)):advise())",
  },
  ["numerics:at_scale"] = {
    "numerics:at_scale(scale: number) -> table",
    "flushed, subnormal and overflowed, as shares, if every element were multiplied by a power of two. Estimated from the histogram: exact \z
      but for values within half a step of a boundary, and for float64 ones beyond the range of float32, which share its end bins.",
    "a scale that is no power of two",
    "print(gb.amp.numerics(gb.rand(9)):at_scale(2^16).flushed)",
  },
  ["policy:apply"] = {
    "policy:apply(model: module) -> module",
    "Pin each module whose whole name (as named_modules gives it) a pattern of Lua's matches; those that no rule matches stay as they are.",
    "a rule that matches none, and two that match one module and differ; then nothing is pinned",
    "gb.amp.policy({ { \".+\", \"float32\" } }):apply(gb.nn.Sequential(gb.nn.ReLU()))",
  },
  ["progress:close"] = {
    "progress:close(text: string = \"done\")",
    "End the bar with a last line of text.",
    nil,
    "gb.progress(0, \"epoch\"):close(\"over\")",
  },
  ["progress:update"] = {
    "progress:update(n: int = 1, values?: table)",
    "n more steps are done; values, a table by name, are shown. Reading a tensor waits for it, so values are read only when the line is \z
      drawn.",
    nil,
    "local bar = gb.progress(1, \"epoch\") bar:update(1, { loss = 0.5 }) bar:close()",
  },
  ["scope:close"] = {
    "scope:close()",
    "End the scope: what was before it holds again. Closing twice does nothing; so does collecting an open scope. Also its end as a \z
      to-be-closed variable.",
    nil,
    "local scope = gb.no_grad() scope:close()",
  },
  ["tensor.device"] = { "tensor.device -> string", "Where the elements lie, such as \"cpu\" or \"cuda:0\".", nil, "print(x.device)" },
  ["tensor.dtype"] = { "tensor.dtype -> string", "The type of the elements, such as \"float32\".", nil, "print(x.dtype)" },
  ["tensor.grad"] = {
    "tensor.grad -> tensor",
    "The gradient that backward added up, or nil; may be set to nil or a tensor of the same shape and dtype (of a 16-bit one in float32 too, \z
      as an optimizer keeps them).",
    nil,
    "x.grad = nil",
  },
  ["tensor.is_leaf"] = { "tensor.is_leaf -> bool", "Was it made by the recipe, not by an op that is recorded?", nil, "print(x.is_leaf)" },
  ["tensor.is_parameter"] = { "tensor.is_parameter -> bool", "Do modules discover it and optimizers train it?", nil, "print(x.is_parameter)" },
  ["tensor.ndim"] = { "tensor.ndim -> int", "The number of dimensions.", nil, "print(x.ndim)" },
  ["tensor.requires_grad"] = {
    "tensor.requires_grad -> bool",
    "Are gradients by this tensor wanted, or is it a result of such? May be set.",
    nil,
    "print(x.requires_grad)",
  },
  ["tensor.shape"] = { "tensor.shape -> list", "The sizes of the dimensions.", nil, "print(x.shape[1])" },
  ["tensor:backward"] = {
    "tensor:backward(gradient?: tensor; retain_graph?: bool, create_graph: bool = false)",
    "The gradients of this tensor by every leaf that requires them, added to leaf.grad; gradient is 1 for a single element. retain_graph is \z
      create_graph unless given. With create_graph leaf.grad has the graph, which holds the leaf: set it to nil when you are done, or ask \z
      gb.grad, else both stay until the host closes. What fails or is interrupted has added some of it, so zero the gradients before the next \z
      try.",
    "no graph, a graph that was freed, a value that was changed in place",
    "loss:backward()",
  },
  ["tensor:bfloat16"] = { "tensor:bfloat16() -> tensor", "In bfloat16.", nil, "local y = x:bfloat16()" },
  ["tensor:bool"] = { "tensor:bool() -> tensor", "In bool: true where not zero.", nil, "local y = x:bool()" },
  ["tensor:chunk"] = {
    "tensor:chunk(chunks: int, dim: dim = 1) -> list",
    "At most this many views of equal length along dim, the last one perhaps shorter.",
    nil,
    "local halves = x:chunk(2)",
  },
  ["tensor:copy_"] = {
    "tensor:copy_(source: tensor) -> tensor",
    "The values of source, broadcast and converted.",
    nil,
    "gb.zeros(2):copy_(gb.ones(2))",
  },
  ["tensor:cpu"] = { "tensor:cpu() -> tensor", "On the CPU; the tensor itself when it is there.", nil, "local y = x:cpu()" },
  ["tensor:cuda"] = {
    "tensor:cuda(index?: int) -> tensor",
    "On a GPU.",
    "there is none",
    "if gb.cuda.is_available() then local y = x:cuda() end",
  },
  ["tensor:detach"] = { "tensor:detach() -> tensor", "The same memory without history.", nil, "local y = x:detach()" },
  ["tensor:dim"] = { "tensor:dim() -> int", "The number of dimensions.", nil, "print(x:dim())" },
  ["tensor:double"] = { "tensor:double() -> tensor", "In float64.", nil, "local y = x:double()" },
  ["tensor:element_size"] = { "tensor:element_size() -> int", "The bytes of one element.", nil, "print(x:element_size())" },
  ["tensor:expand_as"] = {
    "tensor:expand_as(other: tensor) -> tensor",
    "expand to the shape of another tensor.",
    nil,
    "local y = x:expand_as(x)",
  },
  ["tensor:fill_"] = { "tensor:fill_(value: number) -> tensor", "Every element becomes value.", nil, "gb.zeros(2):fill_(1)" },
  ["tensor:float"] = { "tensor:float() -> tensor", "In float32.", nil, "local y = x:float()" },
  ["tensor:free"] = {
    "tensor:free()",
    "This handle ends; the memory goes when nothing else holds it. Also the end of a to-be-closed variable.",
    nil,
    "local y = gb.zeros(2) y:free()",
  },
  ["tensor:half"] = { "tensor:half() -> tensor", "In float16.", nil, "local y = x:half()" },
  ["tensor:int"] = { "tensor:int() -> tensor", "In int32.", nil, "local y = x:int()" },
  ["tensor:is_contiguous"] = {
    "tensor:is_contiguous() -> bool",
    "Do the elements lie in memory row by row, without gaps?",
    nil,
    "print(x:is_contiguous())",
  },
  ["tensor:is_floating_point"] = { "tensor:is_floating_point() -> bool", "Is the dtype a floating one?", nil, "print(x:is_floating_point())" },
  ["tensor:item"] = { "tensor:item() -> number", "The value of the only element.", "several elements", "print(x:sum():item())" },
  ["tensor:long"] = { "tensor:long() -> tensor", "In int64.", nil, "local y = x:long()" },
  ["tensor:new_empty"] = {
    "tensor:new_empty(sizes: ints, options?: options) -> tensor",
    "Memory in the dtype and on the device of this tensor.",
    nil,
    "local y = x:new_empty(2, 3)",
  },
  ["tensor:new_full"] = {
    "tensor:new_full(shape: list, value: number, options?: options) -> tensor",
    "value everywhere, in the dtype and on the device of this tensor.",
    nil,
    "local y = x:new_full({ 2, 3 }, 0.5)",
  },
  ["tensor:new_ones"] = {
    "tensor:new_ones(sizes: ints, options?: options) -> tensor",
    "Ones in the dtype and on the device of this tensor.",
    nil,
    "local y = x:new_ones(2, 3)",
  },
  ["tensor:new_tensor"] = {
    "tensor:new_tensor(value, options?: options) -> tensor",
    "gb.tensor in the dtype and on the device of this tensor.",
    nil,
    "local y = x:new_tensor { 1, 2, 3 }",
  },
  ["tensor:new_zeros"] = {
    "tensor:new_zeros(sizes: ints, options?: options) -> tensor",
    "Zeros in the dtype and on the device of this tensor.",
    nil,
    "local y = x:new_zeros(2, 3)",
  },
  ["tensor:normal_"] = {
    "tensor:normal_(mean?: number, std?: number) -> tensor",
    "Normal random numbers, of mean 0 and deviation 1 unless given.",
    nil,
    "gb.zeros(2):normal_()",
  },
  ["tensor:numel"] = { "tensor:numel() -> int", "The number of elements.", nil, "print(x:numel())" },
  ["tensor:positions"] = {
    "tensor:positions() -> tensor",
    "Indices that count from 0 made Lua's positions, which count from 1.",
    "a tensor that is not of integers",
    "local at = x:argmax():positions():item()",
  },
  ["tensor:random_integers_"] = {
    "tensor:random_integers_(low: int, high: int) -> tensor",
    "Random integers low .. high - 1.",
    nil,
    "gb.zeros(2):random_integers_(0, 10)",
  },
  ["tensor:register_hook"] = {
    "tensor:register_hook(fn: function) -> hook",
    "fn(grad) is called with each gradient that reaches this tensor; a tensor that it returns takes the gradient's place.",
    nil,
    "local hook = gb.ones(2, { requires_grad = true }):register_hook(function(g) return g * 2 end)",
  },
  ["tensor:requires_grad_"] = {
    "tensor:requires_grad_(on: bool = true) -> tensor",
    "Gradients by this tensor are wanted (or not).",
    "integers; false for a result of ops",
    "local w = gb.zeros(2):requires_grad_()",
  },
  ["tensor:reshape_as"] = {
    "tensor:reshape_as(other: tensor) -> tensor",
    "reshape to the shape of another tensor.",
    nil,
    "local y = x:reshape_as(x)",
  },
  ["tensor:retain_grad"] = {
    "tensor:retain_grad() -> tensor",
    "Keep the gradient of a result of ops in .grad.",
    nil,
    "local y = gb.ones(2, { requires_grad = true }) * 2 y:retain_grad()",
  },
  ["tensor:size"] = { "tensor:size(dim?: dim) -> any", "The size of a dimension, or the list of all.", nil, "local rows = x:size(1)" },
  ["tensor:split"] = {
    "tensor:split(length: int|list, dim: dim = 1) -> list",
    "Views of length positions along dim, the last perhaps shorter; or of the lengths in a list.",
    "lengths that do not add up to the dimension",
    "local parts = x:split(2)",
  },
  ["tensor:stats"] = {
    "tensor:stats() -> table",
    "numel; min, max, mean, std of the finite elements; how many are nan, inf and zero.",
    nil,
    "print(x:stats().max)",
  },
  ["tensor:stride"] = {
    "tensor:stride(dim?: dim) -> any",
    "The elements between neighbours along a dimension, or the list of all.",
    nil,
    "print(x:stride(1))",
  },
  ["tensor:tile"] = {
    "tensor:tile(counts: sizes) -> tensor",
    "Each dimension repeated, as blocks; more counts than dimensions add dimensions in front.",
    nil,
    "local y = x:tile(2, 3)",
  },
  ["tensor:to"] = {
    "tensor:to(targets...: any) -> tensor",
    "In another dtype, on another device, or as another tensor is, in any order; the tensor itself where nothing changes.",
    "a device that is not there",
    "local y = x:to(\"float16\")",
  },
  ["tensor:tolist"] = {
    "tensor:tolist() -> any",
    "Nested lists of the elements; the value alone of a 0-d tensor.",
    nil,
    "local rows = x:tolist()",
  },
  ["tensor:type_as"] = {
    "tensor:type_as(other: tensor) -> tensor",
    "In the dtype and on the device of another tensor.",
    nil,
    "local y = x:type_as(gb.zeros(1))",
  },
  ["tensor:unbind"] = { "tensor:unbind(dim: dim = 1) -> list", "The views at each position along dim.", nil, "local rows = x:unbind()" },
  ["tensor:uniform_"] = {
    "tensor:uniform_(low?: number, high?: number) -> tensor",
    "Uniform random numbers in [low, high), 0 and 1 unless given.",
    nil,
    "gb.zeros(2):uniform_()",
  },
  ["tensor:view_as"] = { "tensor:view_as(other: tensor) -> tensor", "view in the shape of another tensor.", nil, "local y = x:view_as(x)" },
  ["tensor:zero_"] = { "tensor:zero_() -> tensor", "Every element becomes 0.", nil, "gb.ones(2):zero_()" },
  ["text:close"] = { "text:close()", "Let go of the text now, not when it is collected." },
  ["text:decode"] = { "text:decode(ids: tensor) -> string", "The string of an integer tensor.", "an id that the vocabulary lacks" },
  ["text:encode"] = {
    "text:encode(string: string) -> tensor",
    "The ids of a string, an int64 vector.",
    "a character that the vocabulary lacks",
  },
  ["text:split"] = { "text:split(share: number) -> text, text", "The first share of the ids, and the rest." },
  ["text:vocabulary"] = { "text:vocabulary() -> string", "The characters in the order of their ids; nil for bytes." },
  ["text:vocabulary_size"] = { "text:vocabulary_size() -> int", "How many ids there are." },
  ["text:windows"] = { "text:windows(block: int) -> dataset", "Samples x = ids[i .. i+block-1], y = the ids one further." },
}
