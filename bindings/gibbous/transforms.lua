-- transforms.lua - the transforms that mix the samples of a batch: mixup and cutmix, as torchvision.transforms.v2 has
-- them. Each sample is mixed with the one before it, the first with the last; one share counts for the whole batch.
-- Those of single images are native (images.c).

local gb, native = ...
local fail, define = native.fail, native.define
local format, sqrt, log, max, min = string.format, math.sqrt, math.log, math.max, math.min
local transforms = gb.data.transforms
local on_host = { device = "cpu" }

local function uniform() return gb.rand(1, on_host):item() end

-- A gamma variate of shape at least 1 (Marsaglia, Tsang: "A simple method for generating gamma variables", ACM TOMS
-- 26(3), 2000).
local function gamma_from_1(shape)
  local d = shape - 1 / 3
  local c = 1 / sqrt(9 * d)
  while true do
    local normal = gb.randn(1, on_host):item()
    local v = (1 + c * normal) ^ 3
    if v > 0 and log(1 - uniform()) < 0.5 * normal ^ 2 + d - d * v + d * log(v) then return d * v end
  end
end

-- Beta(alpha, alpha): the share of one of two gamma variates in their sum; those of a shape below 1 come from one
-- above.
local function beta(alpha)
  local boost = alpha < 1 and 1 or 0
  local a, b = log(gamma_from_1(alpha + boost)), log(gamma_from_1(alpha + boost))
  if boost == 1 then a, b = a + log(1 - uniform()) / alpha, b + log(1 - uniform()) / alpha end
  return 1 / (1 + math.exp(b - a))
end

-- The share that samples keep, from the options.
local function share_of(who, options)
  local alpha, share = options.alpha, options.share
  if share and not (share >= 0 and share <= 1) then
    fail(format("%s: 'share' lies between 0 and 1, got %g", who, share))
  end
  if not (alpha >= 0.001 and alpha <= 1000) then
    fail(format("%s: 'alpha' lies between 0.001 and 1000, got %g", who, alpha))
  end
  return share or beta(alpha)
end

-- Class indices [n] as probabilities [n, classes]; probabilities stay.
local function probabilities(who, x, y, classes)
  if #x.shape < 1 or #y.shape < 1 or x.shape[1] ~= y.shape[1] or x.shape[1] < 1 then
    fail(format("%s: x and y are batches of as many samples, got %s and %s", who, table.concat(x.shape, " x "),
      table.concat(y.shape, " x ")))
  end
  if not x:is_floating_point() then
    fail(format("%s: x holds floats, got %s; put to_float() before it", who, x.dtype))
  end
  if y:is_floating_point() and #y.shape == 2 then return y end
  if y:is_floating_point() or #y.shape ~= 1 or not classes then
    fail(format("%s: y is class indices [n], with classes = how many there are, or probabilities [n, classes]", who))
  end
  return gb.one_hot(y, classes):to(x.dtype)
end

-- share of y and the rest of its neighbour.
local function mixed(y, share) return y * share + gb.roll(y, 1, 1) * (1 - share) end

transforms.mixup = define("gb.data.transforms.mixup(x: tensor, y: tensor; classes?: size, alpha: number = 1, \z
  share?: number) -> tensor, tensor: A batch whose samples are mixed with their neighbours (Zhang et al. 2018): share \z
  * x + (1 - share) * neighbour, the share drawn from Beta(alpha, alpha) unless it is given; and y as probabilities, \z
  mixed alike. y is class indices [n], of so many classes, or probabilities [n, classes]. Example: local x, y = \z
  gb.data.transforms.mixup(gb.rand(4, 3, 8, 8), gb.tensor { 0, 1, 2, 0 }, { classes = 3 })", "strict",
  function(x, y, options)
    y = probabilities("mixup", x, y, options.classes)
    local share = share_of("mixup", options)
    return mixed(x, share), mixed(y, share)
  end)

transforms.cutmix = define("gb.data.transforms.cutmix(x: tensor, y: tensor; classes?: size, alpha: number = 1, \z
  share?: number) -> tensor, tensor: A batch [n, ..., height, width] in which a box at a random place is its \z
  neighbour's (Yun et al. 2019), of 1 - share of the area before it is cut at the edges; and y as probabilities, \z
  mixed by the areas. The rest is as in mixup. Example: local x, y = gb.data.transforms.cutmix(gb.rand(4, 3, 8, 8), \z
  gb.tensor { 0, 1, 2, 0 }, { classes = 3 })", "strict",
  function(x, y, options)
    y = probabilities("cutmix", x, y, options.classes)
    if #x.shape < 3 then fail(format("cutmix: x is [n, ..., height, width], got %d dimensions", #x.shape)) end
    local share = share_of("cutmix", options)
    local height, width = x.shape[#x.shape - 1], x.shape[#x.shape]
    local across, down = uniform() * width // 1, uniform() * height // 1
    local half = 0.5 * sqrt(1 - share)
    local left, right = max(across - half * width // 1, 0), min(across + half * width // 1, width)
    local top, bottom = max(down - half * height // 1, 0), min(down + half * height // 1, height)
    local rows = gb.arange(height, { device = x.device }):reshape(height, 1)
    local columns = gb.arange(width, { device = x.device })
    local in_rows = rows:ge(top):logical_and(rows:lt(bottom))
    local in_columns = columns:ge(left):logical_and(columns:lt(right))
    local kept = 1 - (right - left) * (bottom - top) / (width * height)
    return gb.where(in_rows:logical_and(in_columns), gb.roll(x, 1, 1), x), mixed(y, kept)
  end)
