-- amp.lua - precisions: one object that says what to convert, what scope to open, and whether a scaler is needed;
-- policies, which pin modules.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, match, rep = string.format, string.match, string.rep
local amp = gb.amp
local named_modules, precision_of = gb.nn.Module.named_modules, gb.nn.Module.precision

-- name = { dtype of the parameters, or nil to leave them; dtype of the scope, or false; does it scale? }
local precisions = {
  ["32-true"] = { parameters = nil, autocast = false, scaler = false },
  ["16-mixed"] = { parameters = nil, autocast = "float16", scaler = true },
  ["bf16-mixed"] = { parameters = nil, autocast = "bfloat16", scaler = false },
  -- parameters in 16 bits: the scope converts float32 inputs to theirs, and keeps the float32 islands
  ["16-true"] = { parameters = "float16", autocast = "float16", scaler = true },
  ["bf16-true"] = { parameters = "bfloat16", autocast = "bfloat16", scaler = false },
}

-- What the names of others mean here. A precision's own name, and the dtype policies of Keras: float16 is 16 bits
-- throughout, mixed_float16 is not. Apex: O2 is 16-bit weights with float32 masters and norms and a scaler, which is
-- what 16-true is.
local spellings = {
  ["32"] = "32-true", ["16"] = "16-mixed", bf16 = "bf16-mixed", fp32 = "32-true", fp16 = "16-mixed", amp = "16-mixed",
  mixed_float16 = "16-mixed", mixed_bfloat16 = "bf16-mixed", float32 = "32-true", float16 = "16-true",
    bfloat16 = "bf16-true",
  O0 = "32-true", O1 = "16-mixed", O2 = "16-true",
}
local VARIABLE = "GIBBOUS_AMP" -- the environment's precision, which counts whatever the recipe says

local Precision = {}
Precision.__index = Precision
Precision.__name = "gb.precision"

-- The name, and where it came from if not from the recipe: "bf16-mixed (GIBBOUS_AMP; the recipe says 16-mixed)".
function Precision:__tostring()
  local mine = private(self, "precision")
  if not mine then return "precision" end
  return mine.asked and format("%s (%s; the recipe says %s)", mine.name, VARIABLE, mine.asked) or mine.name
end

-- The house's own name for a spelling (a string, or the numbers 16 and 32); source says in errors where an unknown one
-- came from.
local function resolve(name, source)
  local text = math.type(name) == "integer" and tostring(name) or name
  local known = spellings[text] or text
  if type(known) == "string" and precisions[known] then return known end
  fail(format("unknown precision '%s'%s; there are 32-true, 16-mixed, bf16-mixed, 16-true and bf16-true (also 32, \z
    16, bf16; Keras's float32, "
    .. "mixed_float16, mixed_bfloat16, float16, bfloat16; Apex's O0, O1, O2)", tostring(name), source))
end

amp.precision = define("gb.amp.precision(name: any) -> precision: One object that says what to convert, what scope \z
  to open and whether a scaler is needed: 32-true, 16-mixed, bf16-mixed, 16-true, bf16-true, or another spelling of \z
  one. The environment variable GIBBOUS_AMP overrides the argument, so that a recipe can be tried in another \z
  precision from outside; tostring shows it. Errors: an unknown name. Example: local precision = \z
  gb.amp.precision(\"bf16-mixed\")", "strict", function(name)
  if type(name) ~= "string" and private(name, "precision") then return name end
  local asked, outside = resolve(name, ""), native.environment(VARIABLE)
  local known = outside and outside ~= "" and resolve(outside, " in the environment variable " .. VARIABLE) or asked
  local row = precisions[known]
  local said = outside and outside ~= "" and asked or nil
  local shown = { name = known, parameters = row.parameters, autocast = row.autocast, scaler = row.scaler,
    asked = said }
  return own(setmetatable(shown, Precision), "precision", copy(shown))
end)

-- "16-mixed" stands for gb.amp.precision("16-mixed") wherever a precision is asked for.
local by_name, make_precision = {}, amp.precision
native.precision_by(function(name)
  local made = by_name[name] or make_precision(name)
  by_name[name] = made
  return made
end)

amp.grad = define("gb.amp.grad(loss: tensors, inputs: tensors; scaler?: scaler, grad_outputs?: tensors, \z
  retain_graph?: bool, create_graph?: bool, allow_unused?: bool) -> any: Gradients of loss by inputs, unscaled \z
  float32, for penalties: options are those of gb.grad, and scaler. Example: local w = gb.ones(2, { requires_grad = \z
  true }) local g = gb.amp.grad((w * w):sum(), w, { scaler = scaler, create_graph = true })",
  "strict", function(loss, inputs, options)
    local scaler = options.scaler
    options.scaler = nil
    if not scaler or not scaler:is_enabled() then return gb.grad(loss, inputs, options) end
    local grads = gb.grad(scaler:scale(loss), inputs, options)
    local inverse = 1 / scaler:get_scale()
    local function unscale(g) return g and (g.dtype == "float64" and g or g:to("float32")):mul(inverse) end
    if not grads or gb.is_tensor(grads) then return unscale(grads) end
    for i = 1, #inputs do grads[i] = unscale(grads[i]) end
    return grads
  end)

-- {==== policies ====

-- What is private of a policy: rules, a list of { pattern =, precision = }.
local Policy = {}
Policy.__index = Policy
Policy.__name = "gb.policy"
native.classes.policy = Policy
Policy.__tostring = function(self)
  local mine = private(self, "policy")
  return mine and format("policy (%d rules)", #mine.rules) or "policy"
end

local pinnable = { float32 = true, float16 = true, bfloat16 = true }

-- Rule i of a policy, checked. Patterns are the recipe's, so the string.find in force matches them: in a sandbox one
-- that can be stopped.
local function check_rule(rule, i)
  local pattern, precision = type(rule) == "table" and rule[1], type(rule) == "table" and rule[2]
  if type(pattern) ~= "string" or type(precision) ~= "string" then
    fail(format("amp.policy: rule %d is not of the form { pattern of module names, precision }", i))
  end
  if not pcall(string.find, "", pattern) then fail(format("amp.policy: '%s' is not a Lua pattern", pattern)) end
  if not pinnable[precision] then
    fail(format("amp.policy: rule '%s' names '%s'; a precision is float32, float16 or bfloat16", pattern, precision))
  end
  return { pattern = pattern, precision = precision }
end

amp.policy = define("gb.amp.policy(rules: tree) -> policy: Rules { pattern, precision }, which policy:apply pins \z
  modules by. Errors: a rule of another form. Example: local policy = gb.amp.policy { { \"head%..*\", \"float32\" } \z
  }", "strict", function(rules)
  local list = {}
  if #rules == 0 and next(rules) ~= nil then
    fail("amp.policy takes a list of rules: { { pattern, precision }, ... }")
  end
  for i = 1, #rules do list[i] = check_rule(rules[i], i) end
  return own(setmetatable({}, Policy), "policy", { rules = list })
end)

-- The rule for a module of this name, or nil; every rule that matches is counted in used.
local function rule_for(rules, name, used)
  local found
  for i, rule in ipairs(rules) do
    if string.find(name, "^" .. rule.pattern .. "$") then
      used[i] = true
      if found and found.precision ~= rule.precision then
        fail(format("amp.policy: module '%s' is matched by '%s' (%s) and by '%s' (%s); make one of them narrower", name,
          found.pattern,
          found.precision, rule.pattern, rule.precision))
      end
      found = found or rule
    end
  end
  return found
end

Policy.apply = define("policy:apply(model: module) -> module: Pin each module whose whole name (as named_modules \z
  gives it) a pattern of Lua's matches; those that no rule matches stay as they are. Errors: a rule that matches \z
  none, and two that match one module and differ; then nothing is pinned. Example: gb.amp.policy({ { \".+\", \z
  \"float32\" } }):apply(gb.nn.Sequential(gb.nn.ReLU()))", "strict", function(self, model)
  local rules, used, resolved = private(self, "policy").rules, {}, {}
  for name, module in named_modules(model) do
    local rule = rule_for(rules, name, used)
    if rule then resolved[#resolved + 1] = { module, rule.precision } end
  end
  for i, rule in ipairs(rules) do
    if not used[i] then
      fail(format("amp.policy: no module's name matches '%s'; amp.plan(model) lists them", rule.pattern))
    end
  end
  for _, pin in ipairs(resolved) do precision_of(pin[1], pin[2]) end
  return model
end)

-- Where the pin of the module of this name comes from: itself or the nearest module around it; and the pin. Nothing:
-- the scope decides.
local function origin(pins, name)
  while not pins[name] do
    if name == "" then return nil end
    name = match(name, "^(.*)%.[^.]*$") or ""
  end
  return name, pins[name]
end

-- Text as wide as its column, to the left or to the right of it. string.format counts bytes, takes no width above 99,
-- and no zero byte.
function native.pad(text, width, right)
  local space = rep(" ", width - (utf8.len(text) or #text))
  return right and space .. text or text .. space
end

-- n in the first of the units, each a thousand of the one before, that leaves it below 1,000, or in the last.
function native.in_units(n, units)
  local i = 1
  while n >= 1000 and i < #units do n, i = n / 1000, i + 1 end
  return format(i == 1 and "%d %s" or "%.1f %s", n, units[i])
end

function native.bytes_text(n) return native.in_units(n, { "B", "KB", "MB", "GB" }) end

-- The name of a module's class.
function native.class_name(module) return tostring(native.class_of(module).__name) end

amp.plan = define("gb.amp.plan(model: module) -> list: Print what each module of the model runs in and why. Returns \z
  the rows, { name =, class =, precision = (nil: the scope's), from = }. Example: gb.amp.plan(model)", "strict",
  function(model)
  local rows, pins, width = {}, {}, #"module"
  for name, module in named_modules(model) do
    pins[name] = precision_of(module)
    rows[#rows + 1] = { name = name, class = native.class_name(module) }
    width = math.max(width, utf8.len(name) or #name)
  end
  local function line(name, class, text) print(format("%s  %s  %s", native.pad(name, width), native.pad(class, 18),
    text)) end
  line("module", "class", "precision")
  for _, row in ipairs(rows) do
    row.from, row.precision = origin(pins, row.name)
    local why = not row.from and "the scope's" or row.from == row.name and row.precision or
      format("%s, from '%s'", row.precision, row.from)
    line(row.name, row.class, why)
  end
  return rows
end)

-- ====}
