-- optimizers.lua - every optimizer of the library with its states shared out: weights, states and norms have the bits
-- of the whole optimizer, and the digest that the script returns is the same on every rank of every job. On the CPU, or
-- on the device that GIBBOUS_TEST_DEVICE names.

local gb = require "gibbous"
local nn, F, dist, optim = gb.nn, gb.nn.functional, gb.dist, gb.optim
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end

-- Options of each, with every state that it can have.
local options = {
  SGD = { momentum = 0.9, nesterov = true }, Adam = { amsgrad = true }, AdamW = { amsgrad = true }, NAdam = {},
  RAdam = {}, Adamax = {}, Adagrad = { lr_decay = 0.01 }, Adadelta = {}, RMSprop = { momentum = 0.9, centered = true },
  Rprop = {}, ASGD = { t0 = 2 }, Lion = {}, LAMB = {}, LARS = { momentum = 0.9 }, Muon = {}, Adafactor = {},
}
local device = os.getenv "GIBBOUS_TEST_DEVICE" or "cpu"
local on_device = { device = device }
local precisions = { "bf16-mixed", "bf16-true", "16-mixed", "32-true" }
if device ~= "cpu" then precisions[4], precisions[3] = nil, nil end -- an emulated one is slow
local is_long = device ~= "cpu" or os.getenv "GIBBOUS_TEST_LONG" -- all of them; else two for each optimizer, in turn
local names = {}
for name in pairs(options) do names[#names + 1] = name end
table.sort(names)

local hash = 0xCBF29CE484222325
local function add(text) for i = 1, #text do hash = (hash ~ text:byte(i)) * 0x100000001B3 end end

-- What it has: tensors as their bytes, and all else as a text, in the order of keys.
local function bytes_of(value, out)
  out = out or {}
  if gb.is_tensor(value) then out[#out + 1] = gb.to_bytes(value:detach():cpu():contiguous())
  elseif type(value) == "table" then
    local keys = {}
    for key in pairs(value) do keys[#keys + 1] = key end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(keys) do
      out[#out + 1] = tostring(key)
      bytes_of(value[key], out)
    end
  else out[#out + 1] = type(value) == "number" and ("%a"):format(value) or tostring(value) end
  return out
end

-- Five steps with a clip in the third, and the weights and states after them, as bytes.
local function train(name, precision, share)
  gb.manual_seed(7)
  local setting = gb.amp.precision(precision)
  local model = nn.Sequential(nn.Linear(7, 133), nn.GELU(), nn.Linear(133, 165), nn.Tanh(), nn.Linear(165, 3))
  model:to(device):to(setting)
  local ddp = nn.parallel.DataParallel(model, { shards = 8 })
  local list = model:parameters()
  if name == "Muon" then list = { model[1].weight, model[3].weight, model[5].weight } end
  local opt = optim[name](list, options[name])
  if share then optim.Sharded(opt, share) end
  local scaler, norms = gb.amp.GradScaler(setting), {}
  for step = 1, 5 do
    opt:zero_grad()
    for xs, ys in ddp:shards(gb.randn(16, 7, on_device), gb.randint(0, 3, { 16 }, on_device)) do
      local loss = gb.amp.autocast(setting, function() return F.cross_entropy(ddp(xs):to("float32"), ys) end)
      scaler:scale(loss):backward()
    end
    if step == 3 then
      scaler:unscale_(opt)
      norms[1] = nn.utils.clip_grad_norm_(list, 0.1)
    end
    scaler:step(opt)
    scaler:update()
  end
  local state = table.concat(bytes_of { model:state_dict(), opt:state_dict(), norms })
  opt:close()
  return state
end

describe("a sharded optimizer", function()
  local function compare(name, precision)
    local whole = train(name, precision)
    add(whole)
    expect(train(name, precision, {}) == whole):to_be(true)
    if precision == "bf16-mixed" then expect(train(name, precision, { weights = "needed" }) == whole):to_be(true) end
  end
  for turn, name in ipairs(names) do
    for k, precision in ipairs(precisions) do
      if is_long or k == 1 or k == 2 + turn % 3 then
        it(("has the bits of %s in %s"):format(name, precision), function() compare(name, precision) end)
      end
    end
  end
  it("is of a kind that is tried here", function()
    local others = { LBFGS = true }
    for name, make in pairs(optim) do
      local ok, opt = pcall(function() return make({ nn.Linear(2, 2).weight }) end)
      if ok and type(opt) == "table" and type(opt.kind) == "string" and opt.kind == name then
        expect(options[name] ~= nil or others[name] ~= nil):to_be(true)
        opt:close()
      end
    end
  end)
  it("is not LBFGS, and says why and what to do", function()
    local function share() optim.Sharded(optim.LBFGS(nn.Linear(2, 2):parameters())) end
    expect(share):to_fail("LBFGS looks at all parameters together, and its history is of whole vectors")
    expect(share):to_fail("use it unsharded, or an optimizer that steps each element or parameter by itself")
  end)
end)

gb.test.finish()
return ("%016x"):format(hash)
