-- test_models.lua - real models: the logits, loss and gradients of tests/models/NAME.lua against PyTorch's, which
-- tests/models/make.py saved in float64, and the errors of 16-bit autocast against those of PyTorch's own. NAME as an
-- argument runs one model.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F, amp = gb.nn.functional, gb.amp

local device = gb.get_default_device()
local PRIME = 67108859
local FEW = 16 -- elements
local KINKS = 1e-2 -- of a large model in float32, in L2

-- Numbers 0 .. PRIME - 1 by their positions; make.py has the same function.
local function words(count, stream)
  local h = gb.arange(count, { dtype = "float64", device = "cpu" })
  for _, salt in ipairs { 12345, 777767, 31337, 5040 } do
    h = (h + (salt + 7919 * stream)):remainder(PRIME)
    h = (h * h + salt):remainder(PRIME)
  end
  return h
end

local function count_of(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

-- A weight of a large model: make.py's drawn().
local function drawn(name, shape, stream)
  local u = words(count_of(shape), stream) / PRIME * 2 - 1
  if #shape > 1 then
    u = u * math.sqrt(3 / (count_of(shape) // shape[1]))
  else
    u = name:find("weight$") and u * 0.2 + 1 or u * 0.1
  end
  return u:reshape(shape):to("float32")
end

-- Eight projections on random signs, and sixteen elements, of a tensor.
local function summary(t, stream)
  local n = t:numel()
  local w, projections, elements = words(n, stream), {}, {}
  t = t:to("float64"):to("cpu"):flatten()
  for k = 0, 7 do projections[k + 1] = (((w / 2 ^ k):floor():remainder(2) * 2 - 1) * t):sum():item() end
  for i = 0, 15 do elements[i + 1] = t[i * (n - 1) // 15 + 1]:item() end
  return { norm = t:norm():item(), projections = projections, elements = elements }
end

-- The record of a model, its weights by name and its inputs, float tensors in float32.
local function read(name)
  local file = assert(io.open(("tests/models/data/%s.json"):format(name)))
  local record = gb.io.json_decode(file:read("a"))
  file:close()
  local stored, weights, inputs = gb.load(("tests/models/data/%s.safetensors"):format(name)), {}, {}
  for k, weight in ipairs(record.names) do
    weights[weight] = record.large and drawn(weight, record.shapes[weight], k) or stored["weight." .. weight]
  end
  for key, shape in pairs(record.drawn) do
    inputs[key] = (words(count_of(shape), 0) / PRIME * 2 - 1):reshape(shape):to("float32")
  end
  for key, t in pairs(stored) do
    local input = key:match("^input%.(.+)$")
    if input then inputs[input] = t end
  end
  return record, stored, weights, inputs
end

-- Logits, loss and gradients by name. autocast: a dtype, or nil.
local function run(model, record, weights, inputs, dtype, autocast)
  local w, i = {}, {}
  for name, t in pairs(weights) do w[name] = t:to(dtype):to(device):detach():requires_grad_() end
  for name, t in pairs(inputs) do i[name] = (t:is_floating_point() and t:to(dtype) or t):to(device) end
  local logits, loss
  local function forward()
    logits = model(w, i)
    loss = F.cross_entropy(logits:flatten(1, -2), i.targets:flatten())
  end
  if autocast then amp.autocast({ dtype = autocast }, forward) else forward() end
  local scale = autocast and record.scale or 1
  loss:mul(scale):backward()
  local results = { logits = logits:detach(), loss = loss:detach() }
  for name, t in pairs(w) do
    if t.grad then results["grad." .. name] = t.grad:to("float64") / scale end
  end
  return results
end

-- What is expected of each result by name: the tensor, or its summary.
local function truth_of(record, stored)
  local truth = { logits = stored.logits, loss = stored.loss }
  for k, name in ipairs(record.names) do
    local key = "grad." .. name
    truth[key] = record.large and { summary = record.gradients[name], stream = 1000 + k } or stored[key]
  end
  return truth
end

-- The largest distance of y from exact and exact's largest magnitude, as far as a summary tells.
local function distance(y, exact)
  if gb.is_tensor(exact) then
    return (y:to("float64"):to("cpu") - exact):abs():max():item(), exact:abs():max():item()
  end
  local got, want, most, largest = summary(y, exact.stream), exact.summary, 0, 0
  for i, e in ipairs(want.elements) do
    most, largest = math.max(most, math.abs(got.elements[i] - e)), math.max(largest, math.abs(e))
  end
  -- A projection adds up every element: a share of the norm, as an element is of the largest.
  for i, p in ipairs(want.projections) do
    most = math.max(most, math.abs(got.projections[i] - p) / want.norm * largest)
  end
  return most, largest
end

-- The L2 norm of y - exact by that of exact; of a summary the projections' root mean square, whose expectation it is.
local function relative(y, exact)
  if gb.is_tensor(exact) then return ((y:to("float64"):to("cpu") - exact):norm() / exact:norm()):item() end
  local got, sum = summary(y, exact.stream), 0
  for i, p in ipairs(exact.summary.projections) do sum = sum + (got.projections[i] - p) ^ 2 end
  return math.sqrt(sum / 8) / exact.summary.norm
end

local models = { "gpt2", "llama", "bert", "vit", "whisper", "lstm", "t5", "efficientnet", "mobilenet", "unet" }
if arg and arg[1] then models = { arg[1] } end

for _, name in ipairs(models) do
  describe(name, function()
    local model = dofile(("tests/models/%s.lua"):format(name))
    local record, stored, weights, inputs = read(name)
    local truth, zero = truth_of(record, stored), {}
    for _, key in ipairs(record.zero) do zero[key] = true end

    for dtype, most in pairs { float64 = 1e-9, float32 = 2e-5 } do
      it(("agrees in %s"):format(dtype), function()
        local results = run(model, record, weights, inputs, dtype)
        for key, exact in pairs(truth) do
          if not results[key] then error(("there is no %s"):format(key)) end
          local off, largest = distance(results[key], exact)
          if zero[key] then largest = record.largest end
          -- In float32 a deep network of relu jumps where an argument changes its sign: a share of the whole tensor, or
          -- twice the most that PyTorch's own float32 is off.
          if record.large and dtype == "float32" and not zero[key] then
            local bound = record.single and 2 * record.single or KINKS
            off, largest = relative(results[key], exact) * most / bound, 1
          end
          if not (off <= most * largest) then
            error(("%s: off by %g of its largest magnitude"):format(key, off / largest))
          end
        end
      end)
    end

    for dtype, errors in pairs(record.errors) do
      it(("errs in %s as PyTorch does"):format(dtype), function()
        local results, wrong = run(model, record, weights, inputs, "float32", dtype), {}
        local sorted = {}
        for _, theirs in pairs(errors) do sorted[#sorted + 1] = theirs end
        table.sort(sorted)
        for key, theirs in pairs(errors) do
          -- A few numbers, as the loss, may be exact by luck: they may be off as the model's tensors are in the median.
          if results[key]:numel() <= FEW then theirs = math.max(theirs, sorted[#sorted // 2 + 1]) end
          local ours = relative(results[key], truth[key])
          if not (ours <= 2 * theirs) then wrong[#wrong + 1] = ("%s: %.3g, PyTorch %.3g"):format(key, ours, theirs) end
        end
        expect(table.concat(wrong, "; ")):to_be("")
      end)
    end
  end)
end

gb.test.finish()
