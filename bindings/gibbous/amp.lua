-- amp.lua - precisions: one object that says what to convert, what scope to open, and whether a scaler is needed.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
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

local spellings = {
  ["32"] = "32-true", float32 = "32-true", fp32 = "32-true", ["16"] = "16-mixed", mixed_float16 = "16-mixed", fp16 = "16-mixed",
  bf16 = "bf16-mixed", mixed_bfloat16 = "bf16-mixed", float16 = "16-true", bfloat16 = "bf16-true",
}

local Precision = {}
Precision.__index = Precision
Precision.__tostring = function(self) return self.name end
Precision.__name = "gb.precision"

-- 32-true, 16-mixed, bf16-mixed, 16-true, bf16-true; Keras's names (mixed_float16, ...) mean the same.
function amp.precision(name)
  if getmetatable(name) == Precision then return name end
  local known = spellings[name] or name
  local row = precisions[known]
  if not row then
    fail(("unknown precision '%s'; there are 32-true, 16-mixed, bf16-mixed, 16-true and bf16-true"):format(tostring(name)))
  end
  return setmetatable({ name = known, parameters = row.parameters, autocast = row.autocast, scaler = row.scaler }, Precision)
end

-- Gradients of loss by inputs, unscaled float32, for penalties: options are those of gb.grad, and scaler.
function amp.grad(loss, inputs, options)
  options = options or {}
  if type(options) ~= "table" then fail(("amp.grad takes its options in a table, got %s"):format(type(options))) end
  local scaler = options.scaler
  if scaler and (gb.is_tensor(scaler) or type(scaler) ~= "userdata") then fail(("amp.grad: 'scaler' must be a GradScaler, got %s"):format(type(scaler))) end
  local rest = {}
  for key, value in pairs(options) do
    if key ~= "scaler" then rest[key] = value end
  end
  if not scaler or not scaler:is_enabled() then return gb.grad(loss, inputs, rest) end
  local grads = gb.grad(scaler:scale(loss), inputs, rest)
  local inverse = 1 / scaler:get_scale()
  local function unscale(g) return g and g:to("float32"):mul(inverse) end
  if not grads or gb.is_tensor(grads) then return unscale(grads) end
  for i = 1, #inputs do grads[i] = unscale(grads[i]) end
  return grads
end

for _, name in ipairs { "policy", "plan", "audit", "initialize", "set_global_policy", "numerics", "fp8" } do
  amp[name] = function() fail(("amp.%s is not part of this version"):format(name)) end
end
