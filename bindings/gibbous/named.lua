-- named.lua - optimizers and schedules by name, as options of a run and files of configuration have them.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, private, copy = native.define, native.private, native.copy
local format, huge, math_type = string.format, math.huge, math.type
local max, floor = math.max, math.floor
local Module = gb.nn.Module

local function without_name(given)
  local options = copy(given)
  options[1] = nil
  return options
end

-- A function of a table of the library by its name, as { "AdamW", ... } has it.
local function named(what, given, from)
  local name = rawget(given, 1)
  if type(name) ~= "string" then
    fail(format("'%s' begins with a name, such as { \"%s\", ... }; got a %s", what, what == "optimizer" and
      "AdamW" or "Cosine", type(name)))
  end
  local known = {}
  for key, make in pairs(from) do known[key] = make end
  if type(known[name]) ~= "function" then
    fail(format("there is no %s '%s'%s", what, name, native.nearest(name, known)))
  end
  return known[name]
end

-- The optimizers that step on gradients that are there, by name.
local optimizers = {}
for _, kind in ipairs(native.optimizer_kinds()) do optimizers[kind.name] = gb.optim[kind.name] end

gb.optim.named = define("gb.optim.named(optimizer: any, model: module) -> optimizer: The optimizer of a model's \z
  parameters by its name, \"AdamW\" or { \"AdamW\", lr = 1e-3, weight_decay = 0.1 }; with weight_decay there is none \z
  on biases and norms. One that is there is given back. Errors: a name that is no optimizer's; LBFGS, whose step \z
  takes a function. Example: print(gb.optim.named({ \"SGD\", lr = 0.1 }, gb.nn.Linear(4, 2)))", "strict",
  function(given, model)
    if type(given) == "string" then given = { given } end
    if private(given, "optimizer") then return given end
    if private(given, "lbfgs") or type(given) == "table" and rawget(given, 1) == "LBFGS" then
      fail("'optimizer' cannot be LBFGS, whose step runs the model many times by a closure; write the loop with \z
        LBFGS:step, or take { \"AdamW\", lr = 1e-3 }")
    end
    if type(given) ~= "table" then fail("'optimizer' must be an optimizer, or { \"AdamW\", lr = 1e-3 }") end
    local make, options = named("optimizer", given, optimizers), without_name(given)
    local decay = options.weight_decay
    if type(decay) ~= "number" then return make(Module.parameters(model), options) end
    options.weight_decay = nil
    return make(gb.optim.groups(model, { weight_decay = decay }), options)
  end)

-- What a schedule of so many steps takes besides what was given.
local function fill(name, options, total)
  if options.warmup ~= nil and not math_type(options.warmup) then
    fail(format("'schedule': warmup is a %s; it is a number of steps, or a share of them below 1",
      type(options.warmup)))
  end
  if math_type(options.warmup) == "float" and options.warmup < 1 then
    if total == huge then fail("a share as warmup needs epochs or steps, to know how many steps there are") end
    options.warmup = floor(options.warmup * total)
  end
  if (name == "Cosine" or name == "Linear") and options.steps == nil and total < huge then
    options.steps = max(total - (options.warmup or 0), 1)
  end
  if name == "OneCycle" and options.total_steps == nil and total < huge then options.total_steps = total end
end

-- Run fn, which may make schedules of an optimizer; the rates and momenta that they set are given back.
function native.without_trace(optimizer, fn)
  local opt = private(optimizer, "optimizer")
  local groups, initial, before = opt.native, copy(opt.initial), {}
  for i = 1, #opt.groups do
    before[i] = { lr = groups:get(i, "lr"), momentum = groups:get(i, "momentum"), betas = groups:get(i, "betas") }
  end
  local _ <close> = setmetatable({}, { __close = function()
    opt.initial = initial
    for i, values in ipairs(before) do
      for name, value in next, values do groups:set(i, name, value) end
    end
  end })
  fn()
end

gb.optim.lr.named = define("gb.optim.lr.named(schedule: any, optimizer: optimizer; steps?: size) -> schedule: The \z
  schedule by its name, \"Cosine\" or { \"Cosine\", warmup = 0.1 }, or what a function of the optimizer and the \z
  number of steps gives. steps: how many the run has; Cosine, Linear and OneCycle end there, and a warmup below 1 is \z
  a share of them. One that is there is given back. Errors: a name that is no schedule's. Example: local opt = \z
  gb.optim.SGD(gb.nn.Linear(4, 2):parameters(), { lr = 0.1 }) local schedule = gb.optim.lr.named({ \"Cosine\", warmup \z
  = 0.1 }, opt, { steps = 100 })", "strict", function(given, optimizer, options)
  local total = options.steps or huge
  if private(given, "schedule") then return given end
  if type(given) == "function" then
    local made = given(optimizer, total)
    if private(made, "schedule") then return made end
    fail(format("the function 'schedule' must give a schedule of gb.optim.lr, it gave a %s", type(made)))
  end
  if type(given) == "string" then given = { given } end
  if type(given) ~= "table" then fail("'schedule' must be a schedule, or { \"Cosine\", warmup = 100 }") end
  local make, chosen = named("schedule", given, native.view("gb.optim.lr")), without_name(given)
  if make == gb.optim.lr.named then fail("there is no schedule 'named'") end
  fill(given[1], chosen, total)
  return make(optimizer, chosen)
end)
