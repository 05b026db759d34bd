-- amp.lua - precisions: one object that says what to convert, what scope to open, and whether a scaler is needed; policies, which pin modules.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local amp = gb.amp

-- name = { dtype of the parameters, or nil to leave them; dtype of the scope, or false; does it scale? }
local precisions = {
  ["32-true"] = { parameters = nil, autocast = false, scaler = false },
  ["16-mixed"] = { parameters = nil, autocast = "float16", scaler = true },
  ["bf16-mixed"] = { parameters = nil, autocast = "bfloat16", scaler = false },
  -- parameters in 16 bits: the scope converts float32 inputs to theirs, and keeps the float32 islands
  ["16-true"] = { parameters = "float16", autocast = "float16", scaler = true },
  ["bf16-true"] = { parameters = "bfloat16", autocast = "bfloat16", scaler = false },
}

-- What the names of others mean here. A precision's own name, and the dtype policies of Keras: float16 is 16 bits throughout, mixed_float16 is
-- not. Apex: O2 is 16-bit weights with float32 masters and norms and a scaler, which is what 16-true is.
local spellings = {
  ["32"] = "32-true", ["16"] = "16-mixed", bf16 = "bf16-mixed", fp32 = "32-true", fp16 = "16-mixed",
  mixed_float16 = "16-mixed", mixed_bfloat16 = "bf16-mixed", float32 = "32-true", float16 = "16-true", bfloat16 = "bf16-true",
  O0 = "32-true", O1 = "16-mixed", O2 = "16-true",
}
local VARIABLE = "GIBBOUS_AMP" -- the environment's precision, which counts whatever the recipe says

local Precision = {}
Precision.__index = Precision
Precision.__name = "gb.precision"

-- The name, and where it came from if not from the recipe: "bf16-mixed (GIBBOUS_AMP; the recipe says 16-mixed)".
function Precision:__tostring()
  if not self.asked then return self.name end
  return ("%s (%s; the recipe says %s)"):format(self.name, VARIABLE, self.asked)
end

-- The house's own name for a spelling (a string, or the numbers 16 and 32); source says in errors where an unknown one came from.
local function resolve(name, source)
  local text = math.type(name) == "integer" and tostring(name) or name
  local known = spellings[text] or text
  if type(known) == "string" and precisions[known] then return known end
  fail(("unknown precision '%s'%s; there are 32-true, 16-mixed, bf16-mixed, 16-true and bf16-true (also 32, 16, bf16; Keras's float32, "
    .. "mixed_float16, mixed_bfloat16, float16, bfloat16; Apex's O0, O1, O2)"):format(tostring(name), source))
end

amp.precision = define("gb.amp.precision(name: any) -> precision: One object that says what to convert, what scope to open \z
  and whether a scaler is needed: 32-true, 16-mixed, bf16-mixed, 16-true, bf16-true, or another spelling of one. The environment variable \z
  GIBBOUS_AMP overrides the argument, so that a recipe can be tried in another precision from outside; tostring shows it. Errors: an unknown \z
  name. Example: local precision = gb.amp.precision(\"bf16-mixed\")", "strict", function(name)
  if private(name, "precision") then return name end
  local asked, outside = resolve(name, ""), native.environment(VARIABLE)
  local known = outside and outside ~= "" and resolve(outside, " in the environment variable " .. VARIABLE) or asked
  local row = precisions[known]
  local said = outside and outside ~= "" and asked or nil
  local shown = { name = known, parameters = row.parameters, autocast = row.autocast, scaler = row.scaler, asked = said }
  return own(setmetatable(shown, Precision), "precision", copy(shown))
end)

amp.grad = define("gb.amp.grad(loss: tensors, inputs: tensors; scaler?: scaler, grad_outputs?: tensors, retain_graph?: bool, create_graph?: \z
  bool, allow_unused?: bool) -> any: Gradients of loss by inputs, unscaled float32, for penalties: options are those of gb.grad, and scaler. \z
  Example: local w = gb.ones(2, { requires_grad = true }) local g = gb.amp.grad((w * w):sum(), w, { scaler = scaler, create_graph = true })",
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

local Policy = {}
Policy.__index = Policy
Policy.__name = "gb.policy"
native.classes.policy = Policy

-- Rule i of a policy, checked.
local function check_rule(rule, i)
  local pattern, precision = type(rule) == "table" and rule[1], type(rule) == "table" and rule[2]
  if type(pattern) ~= "string" or type(precision) ~= "string" then
    fail(("amp.policy: rule %d is not of the form { pattern of module names, precision }"):format(i))
  end
  if not pcall(string.find, "", pattern) then fail(("amp.policy: '%s' is not a pattern of Lua's"):format(pattern)) end
  if precision ~= "float32" and precision ~= "float16" and precision ~= "bfloat16" then
    fail(("amp.policy: '%s' is to run in '%s'; there are float32, float16 and bfloat16"):format(pattern, precision))
  end
  return { pattern = pattern, precision = precision }
end

-- gb.amp.policy(rules: list) -> policy: Rules { pattern, precision }, which policy:apply pins modules by. Errors: a rule of another form. Example:
-- local policy = gb.amp.policy { { "head%..*", "float32" } }
function amp.policy(rules)
  if type(rules) ~= "table" then fail(("amp.policy takes a list of rules, got %s"):format(type(rules))) end
  local policy = setmetatable({}, Policy)
  for i, rule in ipairs(rules) do policy[i] = check_rule(rule, i) end
  return policy
end

local function check_model(model, who)
  if not gb.nn.is_module(model) then fail(("%s takes a model, got %s"):format(who, gb.is_tensor(model) and "tensor" or type(model))) end
end

-- The rule for a module of this name, or nil; every rule that matches is counted in used.
local function rule_for(policy, name, used)
  local found
  for i, rule in ipairs(policy) do
    if name:find("^" .. rule.pattern .. "$") then
      used[i] = true
      if found and found.precision ~= rule.precision then
        fail(("amp.policy: module '%s' is matched by '%s' (%s) and by '%s' (%s); make one of them narrower"):format(name, found.pattern, found.precision,
          rule.pattern, rule.precision))
      end
      found = found or rule
    end
  end
  return found
end

-- policy:apply(model: module) -> module: Pin each module whose whole name (as named_modules gives it) a pattern of Lua's matches; those that no rule
-- matches stay as they are. Errors: a rule that matches none, and two that match one module and differ; then nothing is pinned. Example:
-- gb.amp.policy({ { ".+", "float32" } }):apply(gb.nn.Sequential(gb.nn.ReLU()))
function Policy:apply(model)
  check_model(model, "policy:apply")
  local used, resolved = {}, {}
  for name, module in model:named_modules() do
    local rule = rule_for(self, name, used)
    if rule then resolved[#resolved + 1] = { module, rule.precision } end
  end
  for i, rule in ipairs(self) do
    if not used[i] then fail(("amp.policy: no module's name matches '%s'; amp.plan(model) lists them"):format(rule.pattern)) end
  end
  for _, pin in ipairs(resolved) do pin[1]:precision(pin[2]) end
  return model
end

-- Where the pin of the module of this name comes from: itself or the nearest module around it; and the pin. Nothing: the scope decides.
local function origin(pins, name)
  while not pins[name] do
    if name == "" then return nil end
    name = name:match("^(.*)%.[^.]*$") or ""
  end
  return name, pins[name]
end

-- Text as wide as its column, to the left or to the right of it. string.format counts bytes, takes no width above 99, and no zero byte.
function native.pad(text, width, right)
  local space = (" "):rep(width - (utf8.len(text) or #text))
  return right and space .. text or text .. space
end

-- gb.amp.plan(model: module) -> list: Print what each module of the model runs in and why. Returns the rows, { name =, class =, precision = (nil:
-- the scope's), from = }. Example: gb.amp.plan(model)
function amp.plan(model)
  check_model(model, "amp.plan")
  local rows, pins, width = {}, {}, #"module"
  for name, module in model:named_modules() do
    pins[name] = module:precision()
    rows[#rows + 1] = { name = name, class = native.class_of(module).__name }
    width = math.max(width, utf8.len(name) or #name)
  end
  local function line(...) print(("%s  %-18s  %s"):format(...)) end
  line(native.pad("module", width), "class", "precision")
  for _, row in ipairs(rows) do
    row.from, row.precision = origin(pins, row.name)
    local why = not row.from and "the scope's" or row.from == row.name and row.precision or ("%s, from '%s'"):format(row.precision, row.from)
    line(native.pad(row.name, width), row.class, why)
  end
  return rows
end

-- ====}
