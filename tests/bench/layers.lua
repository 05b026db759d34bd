-- layers.lua - our half of the groups layers, optimizers, sorting and rows, as measure.lua says; peer_layers.py has
-- PyTorch's.

local gb = require "gibbous"
local measure = dofile("tests/bench/measure.lua")
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim
local report, floor, precision = measure.report, measure.floor, measure.precision
local groups = {}

-- Forward, and forward with backward, of f under autocast, by the gradients of all leaves. work: the multiply-adds of
-- forward; backward has twice as many where `slopes` of two is not given. Every leaf and result is read or written once
-- forward, and twice more backward.
local function both(name, f, leaves, work, slopes)
  local y = amp.autocast(precision, f)
  local up, elements = gb.randn(y.shape):to(y.dtype), y:numel()
  for _, leaf in ipairs(leaves) do elements = elements + leaf:numel() end
  name = name .. " " .. measure.spelled
  report(name, function()
    gb.no_grad(function() local _ <close> = amp.autocast(precision, f) end)
  end)
  floor(name, 4 * elements, work)
  for _, leaf in ipairs(leaves) do leaf:requires_grad_() end
  report(name .. ", backward", function()
    for _, leaf in ipairs(leaves) do leaf.grad = nil end
    amp.autocast(precision, f):backward(up)
  end)
  floor(name .. ", backward", 12 * elements, (slopes or 3) * work)
end

-- Convolutions: sizes of x, of the weight, options, transposed or not.
local convolutions = {
  { "depthwise 3x3", { 16, 128, 56, 56 }, { 128, 1, 3, 3 }, { padding = 1, groups = 128 } },
  { "depthwise 5x5 stride 2", { 16, 96, 56, 56 }, { 96, 1, 5, 5 }, { padding = 2, stride = 2, groups = 96 } },
  { "32 groups 3x3", { 16, 128, 28, 28 }, { 128, 4, 3, 3 }, { padding = 1, groups = 32 } },
  { "conv 3x3", { 32, 64, 16, 16 }, { 64, 64, 3, 3 }, { padding = 1 } },
  { "conv 3x3 stride 2", { 32, 64, 16, 16 }, { 128, 64, 3, 3 }, { padding = 1, stride = 2 } },
  { "conv 7x7 stride 2", { 16, 3, 64, 64 }, { 64, 3, 7, 7 }, { padding = 3, stride = 2 } },
  { "conv 8x8 stride 4", { 16, 32, 64, 64 }, { 64, 32, 8, 8 }, { padding = 2, stride = 4 } },
  { "patches 16x16", { 8, 3, 224, 224 }, { 192, 3, 16, 16 }, { stride = 16 } },
  { "transposed 2x2 stride 2", { 8, 128, 32, 32 }, { 128, 64, 2, 2 }, { stride = 2 }, "conv_transpose2d" },
  { "transposed 4x4 stride 2", { 16, 128, 16, 16 }, { 128, 64, 4, 4 }, { stride = 2, padding = 1 },
    "conv_transpose2d" },
  { "conv1d 80 channels", { 2, 80, 3000 }, { 384, 80, 3 }, { padding = 1 }, "conv1d" },
  { "conv1d stride 2", { 2, 384, 3000 }, { 384, 384, 3 }, { padding = 1, stride = 2 }, "conv1d" },
}

function groups.layers()
  for _, case in ipairs(convolutions) do
    local name, x_size, w_size, options, kind = table.unpack(case)
    local x, w = gb.randn(x_size), gb.randn(w_size) * 0.1
    local function f() return F[kind or "conv2d"](x, w, nil, options) end
    -- a weight meets each place of the result once; of a transposed convolution each place of x
    local places = kind == "conv_transpose2d" and x or f()
    local count = places:numel() // places:size(2)
    both(name, f, { x, w }, w:numel() * count)
  end
  local x, scale, shift = gb.randn(16, 128, 56, 56), gb.ones(128), gb.zeros(128)
  both("group_norm", function() return F.group_norm(x, 32, scale, shift) end, { x, scale, shift }, 0)
  local maps = gb.randn(8, 64, 56, 56)
  for _, mode in ipairs { "nearest", "bilinear", "bicubic" } do
    both("interpolate " .. mode, function() return F.interpolate(maps, nil, { scale_factor = 2, mode = mode }) end,
      { maps }, 0)
  end
  local q, k, v = gb.randn(4, 16, 256, 64), gb.randn(4, 4, 256, 64), gb.randn(4, 4, 256, 64)
  local grouped = { is_causal = true, enable_gqa = true }
  -- half of the scores are out of sight; backward makes them again
  both("attention, 4 of 16 heads", function() return F.scaled_dot_product_attention(q, k, v, nil, grouped) end,
    { q, k, v }, 4 * 16 * 256 * 256 * 64, 3.5)
  local rows, bags = gb.randn(50000, 128), gb.randint(0, 50000, { 2048, 32 })
  report("embedding_bag " .. measure.spelled, function()
    gb.no_grad(function() local _ <close> = F.embedding_bag(bags, rows) end)
  end)
  floor("embedding_bag " .. measure.spelled, 4 * 2048 * 33 * 128, 0)
  rows:requires_grad_()
  local up = gb.randn(2048, 128)
  report(("embedding_bag %s, backward"):format(measure.spelled), function()
    rows.grad = nil
    F.embedding_bag(bags, rows):backward(up)
  end)
  floor(("embedding_bag %s, backward"):format(measure.spelled), 4 * (3 * 2048 * 33 * 128 + 50000 * 128), 0)
  local a, b = gb.randn(8, 256, 8, 64), gb.randn(8, 256, 8, 64)
  both("einsum bthd,bshd->bhts", function() return gb.einsum("bthd,bshd->bhts", a, b) end, { a, b },
    8 * 8 * 256 * 256 * 64)
  local c, d = gb.randn(64, 128, 96), gb.randn(96, 32, 64)
  both("einsum bij,jkb->bik", function() return gb.einsum("bij,jkb->bik", c, d) end, { c, d }, 64 * 128 * 96 * 32)
end

-- Each optimizer over 64 MB of parameters: how often their bytes are read or written in one step, and for Muon the
-- products. LAMB and LARS have to know a norm before they write.
local optimizers = {
  { "SGD", { lr = 1e-3 }, 3 }, { "SGD", { lr = 1e-3, momentum = 0.9 }, 5, " momentum" }, { "Adam", { lr = 1e-3 }, 7 },
  { "AdamW", { lr = 1e-3 }, 7 }, { "AdamW", { lr = 1e-3, amsgrad = true }, 9, " amsgrad" },
  { "RMSprop", { lr = 1e-3 }, 5 }, { "Adagrad", { lr = 1e-3 }, 5 }, { "Adadelta", { lr = 1e-3 }, 7 },
  { "Adamax", { lr = 1e-3 }, 7 }, { "NAdam", { lr = 1e-3 }, 7 }, { "RAdam", { lr = 1e-3 }, 7 },
  { "ASGD", { lr = 1e-3 }, 5 }, { "Rprop", { lr = 1e-3 }, 7 }, { "Lion", { lr = 1e-4 }, 5 },
  { "LAMB", { lr = 1e-3 }, 10 }, { "LARS", { lr = 1e-3 }, 7 }, { "Muon", { lr = 1e-3 }, 5 },
}

function groups.optimizers()
  local side, count = 1024, 16
  for _, case in ipairs(optimizers) do
    local kind, options, moves, suffix = table.unpack(case)
    local name, list = kind .. (suffix or ""), {}
    for i = 1, count do
      list[i] = nn.Parameter(gb.randn(side, side))
      list[i].grad = gb.randn(side, side)
    end
    local opt = optim[kind](list, options)
    report(name, function() opt:step() end)
    opt:close()
    floor(name, moves * count * side * side * 4, kind == "Muon" and 5 * 3 * count * side ^ 3 or 0)
  end
end

function groups.sorting()
  local line, rows, whole = gb.randn(1 << 20), gb.randn(4096, 1024), gb.randint(0, 1 << 40, { 1 << 20 })
  local few = gb.randint(0, 10000, { 1 << 20 })
  local function case(name, x, moves, f)
    report(name, function() for _, made in ipairs { f() } do made:free() end end)
    floor(name, moves * x:numel(), 0)
  end
  -- bytes of an element, of its place in the result and of its index
  case("sort 1 Mi float32", line, 16, function() return line:sort() end)
  case("sort 1 Mi int64", whole, 24, function() return whole:sort() end)
  case("sort 4096 rows of 1024", rows, 16, function() return rows:sort() end)
  case("sort 1024 columns of 4096", rows, 16, function() return rows:sort(1) end)
  case("argsort 1 Mi float32", line, 12, function() return line:argsort() end)
  case("topk 100 of 1 Mi", line, 4, function() return line:topk(100) end)
  case("topk 10 of 4096 rows of 1024", rows, 4, function() return rows:topk(10) end)
  case("unique 1 Mi of 10000", few, 8, function() return few:unique() end)
  case("unique 1 Mi of 10000, inverse, counts", few, 16,
    function() return few:unique { return_inverse = true, return_counts = true } end)
  case("unique 1 Mi float32", line, 8, function() return line:unique() end)
  local large = gb.randn(4096, 4096)
  case("cumsum along rows", large, 8, function() return large:cumsum(-1) end)
  case("cumsum along columns", large, 8, function() return large:cumsum(1) end)
  local flat = large:view(-1)
  case("cumsum of one row", flat, 8, function() return flat:cumsum(-1) end)
end

-- Folds, searches and softmax over few elements: along rows, and along columns.
function groups.rows()
  for _, n in ipairs { 2, 8, 64 } do
    for dim, x in ipairs { gb.randn(n, (1 << 20) // n), gb.randn((1 << 20) // n, n) } do
      for _, op in ipairs { "sum", "amax", "argmax", "var", "softmax", "log_softmax", "logsumexp" } do
        local name = ("%s of %s of %d"):format(op, dim == 1 and "columns" or "rows", n)
        report(name, function() x[op](x, dim):free() end)
        floor(name, (op:find "softmax" and 8 or 4) * x:numel(), 0)
      end
    end
  end
end

groups[measure.group]()
