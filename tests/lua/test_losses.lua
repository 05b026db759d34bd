-- test_losses.lua - losses and distances beyond their numbers (test_golden_ops.lua): modules, wrong arguments, values
-- at the edges.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F = gb.nn, gb.nn.functional

gb.manual_seed(4)
local x, y, z = gb.randn(6, 4), gb.randn(6, 4), gb.randn(6, 4)
local labels, signs = gb.rand(6, 4):gt(0.5):float(), gb.rand(6, 4):gt(0.5):float() * 2 - 1
local row_signs = gb.tensor { 1.0, -1, 1, -1, 1, -1 }
local classes = gb.tensor { 3, 0, 1, 1, 2, 3 }
local several = gb.tensor { { 3, 1, -1, 0 }, { -1, 0, 0, 0 }, { 0, 1, 2, 3 }, { 2, -1, 1, 1 }, { 1, 1, -1, 2 },
  { 0, -1, -1, -1 } }

-- Modules: what they make, their options, the tensors they take, and the function and arguments that must make the
-- same.
local modules = {
  { "HuberLoss", { delta = 0.5 }, { x, y }, F.huber_loss },
    { "SoftMarginLoss", { reduction = "sum" }, { x, signs }, F.soft_margin_loss },
  { "HingeEmbeddingLoss", { margin = 0.3 }, { x:abs(), signs }, F.hinge_embedding_loss },
  { "PoissonNLLLoss", { log_input = false, full = true, eps = 0.01 }, { x:abs(), y:abs() * 3 }, F.poisson_nll_loss },
  { "MultiLabelMarginLoss", { reduction = "none" }, { x, several }, F.multilabel_margin_loss },
  { "MultiLabelSoftMarginLoss", { reduction = "none" }, { x, labels }, F.multilabel_soft_margin_loss },
  { "MultiMarginLoss", { p = 2, margin = 0.4 }, { x, classes }, F.multi_margin_loss },
  { "SigmoidFocalLoss", { alpha = -1, gamma = 3 }, { x, labels }, F.sigmoid_focal_loss },
  { "DiceLoss", { smooth = 0.1 }, { x:sigmoid(), labels }, F.dice_loss },
  { "GaussianNLLLoss", { full = true }, { x, y, z:abs() }, F.gaussian_nll_loss },
  { "MarginRankingLoss", { margin = 0.2 }, { x, y, signs }, F.margin_ranking_loss },
  { "TripletMarginLoss", { swap = true, p = 1, margin = 0.7 }, { x, y, z }, F.triplet_margin_loss },
  { "CosineEmbeddingLoss", { margin = 0.1 }, { x, y, row_signs }, F.cosine_embedding_loss },
}

describe("a module", function()
  for _, row in ipairs(modules) do
    local name, options, inputs, fn = table.unpack(row)
    it(name .. " is its function", function()
      local copy = {}
      for key, value in pairs(options) do copy[key] = value end
      local module, arguments = nn[name](copy), { table.unpack(inputs) }
      arguments[#arguments + 1] = options
      expect(module(table.unpack(inputs))):to_equal_bits(fn(table.unpack(arguments)))
      arguments[#arguments] = x
      expect(function() module(table.unpack(arguments)) end):to_fail("one argument more")
      expect(function() nn[name] { reduction = "most" } (table.unpack(inputs)) end):to_fail("'most' is unknown")
      expect(tostring(module):find(name, 1, true) ~= nil):to_be(true)
    end)
  end
  it("keeps weights as buffers", function()
    local weight = gb.tensor { 1.0, 2, 3, 4 }
    for name, call in pairs {
      MultiMarginLoss = function(o) return F.multi_margin_loss(x, classes, weight, o) end,
      MultiLabelSoftMarginLoss = function(o) return F.multilabel_soft_margin_loss(x, labels, weight, o) end,
      BCEWithLogitsLoss = function(o) return F.binary_cross_entropy_with_logits(x, labels, weight, o) end,
    } do
      local module = nn[name] { weight = weight }
      expect(module(x, name == "MultiMarginLoss" and classes or labels)):to_equal_bits(call {})
      expect(module:state_dict().weight):to_equal_bits(weight)
    end
    local module = nn.BCEWithLogitsLoss { pos_weight = weight }
    expect(module(x, labels)):to_equal_bits(F.binary_cross_entropy_with_logits(x, labels, { pos_weight = weight }))
    expect(module:state_dict().pos_weight):to_equal_bits(weight)
    expect(nn.BCEWithLogitsLoss({ pos_weight = 3 })(x, labels)):to_equal_bits(F.binary_cross_entropy_with_logits(x,
      labels, { pos_weight = 3 }))
  end)
  it("of distances is its function", function()
    expect(nn.CosineSimilarity()(x, y)):to_equal_bits(F.cosine_similarity(x, y))
    expect(nn.CosineSimilarity({ dim = 1, eps = 2 })(x, y)):to_equal_bits(gb.cosine_similarity(x, y, 1, { eps = 2 }))
    expect(nn.PairwiseDistance()(x, y)):to_equal_bits(F.pairwise_distance(x, y))
    expect(nn.PairwiseDistance({ p = 1, keepdim = true })(x, y)):to_equal_bits(gb.pairwise_distance(x, y, 1,
      { keepdim = true }))
    expect(function() nn.CosineSimilarity()(x, y, z) end):to_fail("one argument more")
  end)
  it("Bilinear is its function, initialised as PyTorch's", function()
    local layer = nn.Bilinear(4, 3, 5)
    local b = gb.randn(6, 3)
    expect(layer.weight):to_have_shape(5, 4, 3)
    expect(layer.weight:abs():max():item() <= 0.5 and layer.weight:std():item() > 0.2):to_be(true)
    expect(layer(x, b)):to_equal_bits(F.bilinear(x, b, layer.weight, layer.bias))
    expect(nn.Bilinear(4, 3, 5, { bias = false }).bias):to_be(nil)
    expect(tostring(layer):find("4, 3 -> 5", 1, true) ~= nil):to_be(true)
  end)
end)

describe("pos_weight", function()
  it("is a number or a tensor of the same effect", function()
    local number = F.binary_cross_entropy_with_logits(x, labels, { pos_weight = 2 })
    expect(F.binary_cross_entropy_with_logits(x, labels, { pos_weight = gb.full({ 4 }, 2) })):to_equal_bits(number)
    expect(F.binary_cross_entropy_with_logits(x, labels, nil, gb.tensor(2.0))):to_equal_bits(number)
  end)
  it("does not make the loss larger than x", function()
    expect(function() F.binary_cross_entropy_with_logits(x, labels,
      { pos_weight = gb.ones(2, 6, 4) }) end):to_fail("'pos_weight' has shape 2x6x4")
    expect(function() F.binary_cross_entropy_with_logits(x, labels,
      { pos_weight = "2" }) end):to_fail("tensor or a number")
  end)
end)

-- What is called, and the words that its error says.
local wrong = {
  { "huber_loss", "'delta' is 0, it must be above 0", function() F.huber_loss(x, y, { delta = 0 }) end },
  { "huber_loss", "weight 4", function() F.huber_loss(x, y, gb.ones(4)) end },
  { "triplet_margin_loss", "'margin' is 0, it must be above 0",
    function() F.triplet_margin_loss(x, y, z, { margin = 0 }) end },
  { "triplet_margin_loss", "negative 4x6", function() F.triplet_margin_loss(x, y, z:t()) end },
  { "margin_ranking_loss", "target 6", function() F.margin_ranking_loss(x, y, row_signs) end },
  { "cosine_embedding_loss", "a target [n] goes with", function() F.cosine_embedding_loss(x, y, gb.tensor(1.0)) end },
  { "cosine_embedding_loss", "target 4", function() F.cosine_embedding_loss(x, y, gb.ones(4)) end },
  { "gaussian_nll_loss", "var is -1", function() F.gaussian_nll_loss(x, y, -1) end },
  { "gaussian_nll_loss", "var 4", function() F.gaussian_nll_loss(x, y, gb.ones(4)) end },
  { "gaussian_nll_loss", "var 1x1", function() F.gaussian_nll_loss(x, y, gb.ones(1, 1)) end },
  { "multilabel_margin_loss", "target 6", function() F.multilabel_margin_loss(x, classes) end },
  { "multilabel_margin_loss", "'target' must be an integer", function() F.multilabel_margin_loss(x, labels) end },
  { "multilabel_margin_loss", "no classes",
    function() F.multilabel_margin_loss(gb.ones(2, 0), gb.ones(2, 0, { dtype = "int64" })) end },
  { "multilabel_soft_margin_loss", "'weight' has shape 6",
    function() F.multilabel_soft_margin_loss(x, labels, row_signs) end },
  { "multi_margin_loss", "'p' is 3, it must be at least 1 and at most 2",
    function() F.multi_margin_loss(x, classes, { p = 3 }) end },
  { "multi_margin_loss", "weight needs one element per class, 4",
    function() F.multi_margin_loss(x, classes, gb.ones(3)) end },
  { "multi_margin_loss", "class indices", function() F.multi_margin_loss(x, gb.tensor { 1, 2 }) end },
  { "sigmoid_focal_loss", "'alpha' is -0.5, it must be 0 to 1, or -1",
    function() F.sigmoid_focal_loss(x, labels, { alpha = -0.5 }) end },
  { "sigmoid_focal_loss", "'alpha' is 1.5, it must be at most 1",
    function() F.sigmoid_focal_loss(x, labels, { alpha = 1.5 }) end },
  { "dice_loss", "'smooth' is -1, it must be at least 0", function() F.dice_loss(x, labels, { smooth = -1 }) end },
  { "dice_loss", "dimensions", function() F.dice_loss(x[1], labels[1]) end },
  { "soft_margin_loss", "target 6", function() F.soft_margin_loss(x, row_signs) end },
  { "poisson_nll_loss", "'x' must be a floating tensor", function() F.poisson_nll_loss(x:long(), labels) end },
  { "cosine_similarity", "do not broadcast", function() F.cosine_similarity(x, gb.ones(5)) end },
  { "cosine_similarity", "dim 3 does not exist", function() F.cosine_similarity(x, y, 3) end },
  { "pairwise_distance", "do not broadcast", function() gb.pairwise_distance(x, gb.ones(5)) end },
  { "cdist", "6x4 and x2 6x3", function() gb.cdist(x, gb.ones(6, 3)) end },
  { "cdist", "'p' is -1, it must be at least 0", function() gb.cdist(x, y, -1) end },
  { "cdist", "dimensions", function() gb.cdist(x, y[1]) end },
  { "cdist", "compute_mode", function() gb.cdist(x, y, 2, { compute_mode = "exact" }) end },
  { "normalize", "dim 3 does not exist", function() F.normalize(x, 2, 3) end },
  { "bilinear", "weight 5x3x4", function() F.bilinear(x, y, gb.ones(5, 3, 4)) end },
  { "bilinear", "bias has shape 3", function() F.bilinear(x, y, gb.ones(5, 4, 4), gb.ones(3)) end },
}

describe("a wrong call", function()
  for _, row in ipairs(wrong) do
    it(("of %s says '%s'"):format(row[1], row[2]), function()
      expect(row[3]):to_fail(row[1])
      expect(row[3]):to_fail(row[2])
    end)
  end
  for _, bad in ipairs { 4, -2, math.mininteger, math.maxinteger } do
    it("names a target of " .. bad, function()
      local function check(name, fn)
        local text = select(2, pcall(function() fn():sum():item() end))
        expect(tostring(text):find(name, 1, true) ~= nil and tostring(text):find(tostring(bad), 1, true) ~= nil
          and tostring(text):find("out of range 0 .. 3", 1, true) ~= nil):to_be(true)
      end
      check(x.device ~= "cpu" and "" or "multi_margin_loss",
        function() return F.multi_margin_loss(x, gb.tensor { 0, 1, 2, 3, bad, 0 }) end)
      check(x.device ~= "cpu" and "" or "multilabel_margin_loss",
        function() return F.multilabel_margin_loss(x[1], gb.tensor { 2, bad, -1, 0 }) end)
    end)
  end
end)

describe("at the edges", function()
  it("a target after the first -1 does not count, whatever it is", function()
    local row = gb.tensor { 0.1, 0.9, -0.4, 0.3 }
    local short = F.multilabel_margin_loss(row, gb.tensor { 2, -1, -1, -1 })
    expect(F.multilabel_margin_loss(row, gb.tensor { 2, -1, 77, -9 })):to_equal_bits(short)
  end)
  it("a negative variance gives NaN, one below eps counts as eps", function()
    local mean, target = gb.zeros(3), gb.ones(3)
    local loss = F.gaussian_nll_loss(mean, target, gb.tensor { -1.0, 0, 4 },
      { eps = 0.25, reduction = "none" }):tolist()
    expect(loss[1] ~= loss[1]):to_be(true)
    expect(loss[2]):to_be_near(0.5 * (math.log(0.25) + 4), 1e-6)
    expect(loss[3]):to_be_near(0.5 * (math.log(4) + 0.25), 1e-6)
  end)
  it("soft_margin_loss does not overflow", function()
    local far = gb.tensor({ 1000.0, -1000 }):requires_grad_()
    local loss = F.soft_margin_loss(far, gb.tensor { -1.0, -1 }, { reduction = "none" })
    expect(loss):to_be_close { 1000, 0 }
    expect(gb.grad(loss:sum(), far)):to_be_close { 1, 0 }
  end)
  it("vectors of zeros have a cosine of 0 and a gradient", function()
    local zero, one = gb.zeros(2, 3):requires_grad_(), gb.ones(2, 3):requires_grad_()
    local cosine = F.cosine_similarity(zero, one)
    expect(cosine):to_be_close { 0, 0 }
    for _, g in ipairs(gb.grad(cosine:sum(), { zero, one })) do expect(g:isfinite():all():item()):to_be(true) end
    local unit = F.normalize(zero)
    expect(unit):to_be_close(gb.zeros(2, 3))
    expect(gb.grad(unit:sum(), zero):isfinite():all():item()):to_be(true)
  end)
  it("equal rows have a distance of 0 and a gradient of 0", function()
    local a = gb.ones(2, 3):requires_grad_()
    local d = gb.cdist(a, gb.ones(4, 3))
    expect(d):to_be_close(gb.zeros(2, 4))
    expect(gb.grad(d:sum(), a)):to_be_close(gb.zeros(2, 3))
  end)
  it("distances by a product of matrices are those by differences, of equal rows and 16 bits too", function()
    local whole = gb.arange(120):reshape(40, 3):remainder(7):float():requires_grad_() -- so that all sums are exact
    local by_product = gb.cdist(whole, whole[{ { 1, 5 } }])
    local exact = gb.cdist(whole, whole[{ { 1, 5 } }], 2, { compute_mode = "donot_use_mm_for_euclid_dist" })
    expect(by_product):to_equal_bits(exact)
    expect(by_product:eq(0):sum():item() > 5):to_be(true)
    local up = gb.arange(200):reshape(40, 5)
    expect(gb.grad((by_product * up):sum(), whole)):to_be_close(gb.grad((exact * up):sum(), whole), 1e-4)
    expect(gb.cdist(gb.ones(3, 0), gb.ones(40, 0))):to_be_close(gb.zeros(3, 40))
    expect(gb.cdist(gb.ones(0, 3), gb.ones(40, 3)):size(2)):to_be(40)
    gb.amp.autocast("bfloat16", function()
      expect(gb.cdist(whole, whole)):to_equal_bits(gb.cdist(whole:detach(), whole:detach()))
      expect(gb.cdist(whole, whole[{ { 1, 5 } }])):to_equal_bits(exact)
    end)
  end)
  it("steps of 16-bit inputs are computed in float32, and the result rounded once", function()
    for _, dtype in ipairs { "float16", "bfloat16" } do
      local a, b = x:to(dtype), y:to(dtype)
      expect(F.cosine_similarity(a, b)):to_equal_bits(F.cosine_similarity(a:float(), b:float()):to(dtype))
      expect(F.huber_loss(a, b)):to_equal_bits(F.huber_loss(a:float(), b:float()):to(dtype))
    end
  end)
end)

-- {==== ctc_loss ====

-- The loss of one sample by its definition: the probabilities of all paths that are the target without repeats and
-- blanks.
local function by_paths(log_probs, target, blank)
  local steps, most, total = log_probs:size(1), log_probs:size(2) - 1, 0
  local rows, wanted = log_probs:tolist(), table.concat(target, ",")
  local path = {}
  local function walk(t, sum)
    if t > steps then
      local kept, last = {}, nil
      for _, c in ipairs(path) do
        if c ~= last and c ~= blank then kept[#kept + 1] = c end
        last = c
      end
      if table.concat(kept, ",") == wanted then total = total + math.exp(sum) end
      return
    end
    for c = 0, most do
      path[t] = c
      walk(t + 1, sum + rows[t][c + 1])
    end
  end
  walk(1, 0)
  return -math.log(total)
end

describe("ctc_loss", function()
  gb.manual_seed(8)
  local logits = gb.randn(5, 3, 4, { dtype = "float64" })
  local log_probs = logits:log_softmax(-1)
  local targets, steps, lengths = gb.tensor { { 1, 2 }, { 3, 3 }, { 2, 0 } }, gb.tensor { 5, 4, 3 },
    gb.tensor { 2, 2, 1 }
  local function loss(options) return F.ctc_loss(log_probs, targets, steps, lengths, options) end
  it("takes lengths that lie on the host, or elsewhere", function()
    local leaf = log_probs:detach():requires_grad_()
    local whole = F.ctc_loss(leaf, targets, steps, lengths)
    local slope = gb.grad(whole, leaf)
    local near = F.ctc_loss(leaf, targets, steps:cpu(), lengths:cpu())
    expect(near):to_equal_bits(whole)
    expect(gb.grad(near, leaf)):to_equal_bits(slope)
    expect(F.ctc_loss(leaf, targets, steps:cpu(), lengths)):to_equal_bits(whole)
    local host = F.ctc_loss(log_probs:cpu(), targets:cpu(), steps, lengths)
    expect(host.device):to_be("cpu")
    expect(host:item()):to_be_near(whole:item(), 1e-12) -- sums of float64, in another order on a device
    expect(function() F.ctc_loss(log_probs, targets, steps:cpu():float(), lengths) end):to_fail("input_lengths")
    expect(function() F.ctc_loss(log_probs, targets, steps:cpu() + 100, lengths) end):to_fail("out of range")
  end)
  it("is the sum over all paths", function()
    local each = loss({ reduction = "none" }):tolist()
    for i, target in ipairs { { 1, 2 }, { 3, 3 }, { 2 } } do
      expect(each[i]):to_be_near(by_paths(log_probs:select(2, i):narrow(1, 1, 6 - i), target, 0), 1e-12)
    end
    local last = F.ctc_loss(log_probs:select(2, 1), gb.tensor { 0, 1 }, gb.tensor(5), gb.tensor(2), { blank = 3 })
    expect(last:item() * 2):to_be_near(by_paths(log_probs:select(2, 1), { 0, 1 }, 3), 1e-12)
  end)
  it("reduces as it says", function()
    local each = loss { reduction = "none" }
    expect(loss { reduction = "sum" }):to_be_close(each:sum())
    expect(loss()):to_be_close((each / gb.tensor({ 2, 2, 1 }, { dtype = "float64" })):mean())
  end)
  it("takes targets one after another, one sample alone, and any layout", function()
    local each = loss { reduction = "none" }
    local row = gb.tensor { 1, 2, 3, 3, 2 }
    expect(F.ctc_loss(log_probs, row, steps, lengths, { reduction = "none" })):to_equal_bits(each)
    expect(F.ctc_loss(log_probs:transpose(1, 2):contiguous():transpose(1, 2), targets:t():contiguous():t(),
      steps:to("int32"), lengths:to("uint8"),
      { reduction = "none" })):to_equal_bits(each)
    for _, one in ipairs { gb.tensor(4), gb.tensor { 4 } } do
      expect(F.ctc_loss(log_probs:select(2, 2), targets[2], one, one - 2, { reduction = "sum" })):to_equal_bits(each[2])
    end
  end)
  it("behind log_softmax has the gradient of softmax less the shares of classes", function()
    local leaf = logits:clone():requires_grad_()
    local g = gb.grad(F.ctc_loss(leaf:log_softmax(-1), targets, steps, lengths, { reduction = "sum" }), leaf)
    expect(g:sum(-1)):to_be_close(gb.zeros(5, 3, { dtype = "float64" }), 1e-12)
    expect(g[5][3]:abs():max():item()):to_be(0.0) -- beyond the length
    local each = gb.grad(F.ctc_loss(leaf:log_softmax(-1), targets, steps, lengths, { reduction = "none" }):sum(), leaf)
    expect(each):to_be_close(g, 1e-12)
  end)
  it("of what no alignment fits is infinite, or 0 without a gradient", function()
    local short = gb.tensor { 1, 2, 0 } -- steps; two equal labels need three
    local function at(options)
      local leaf = log_probs:detach():requires_grad_()
      local each = F.ctc_loss(leaf, targets, short, lengths, options)
      return each:tolist(), gb.grad(each:sum(), leaf)
    end
    local each, g = at { reduction = "none" }
    for i = 1, 3 do expect(each[i]):to_be(math.huge) end
    expect(g[1][1]:isnan():any():item()):to_be(true)
    each, g = at { reduction = "none", zero_infinity = true }
    for i = 1, 3 do expect(each[i]):to_be(0.0) end
    expect(g:abs():max():item()):to_be(0.0)
  end)
  it("of an empty target is that of blanks alone; without samples or steps it is there", function()
    local empty = gb.zeros(3, { dtype = "int64" })
    local each = F.ctc_loss(log_probs, targets, steps, empty, { reduction = "none" })
    expect(each[3]:item()):to_be_near(-log_probs:select(2, 3):narrow(1, 1, 3):select(2, 1):sum():item(), 1e-12)
    expect(F.ctc_loss(log_probs, gb.zeros(3, 0, { dtype = "int64" }), steps, empty,
      { reduction = "none" })):to_equal_bits(each)
    expect(F.ctc_loss(log_probs, targets, empty, empty, { reduction = "none" })):to_be_close { 0, 0, 0 }
    local none = gb.zeros(0, { dtype = "int64" })
    expect(F.ctc_loss(gb.zeros(5, 0, 4), gb.zeros(0, 2, { dtype = "int64" }), none, none,
      { reduction = "none" })):to_have_shape(0)
    expect(F.ctc_loss(gb.zeros(5, 0, 4), none, none, none, { reduction = "sum" }):item()):to_be(0.0)
  end)
  it("counts classes that are certain or impossible", function()
    local certain = gb.full({ 3, 1, 3 }, -math.huge, { dtype = "float64" })
    certain[{ 1, 1, 2 }], certain[{ 2, 1, 1 }], certain[{ 3, 1, 3 }] = 0, 0, 0
    local leaf = certain:requires_grad_()
    local sum = F.ctc_loss(leaf, gb.tensor { { 1, 2 } }, gb.tensor { 3 }, gb.tensor { 2 }, { reduction = "sum" })
    expect(sum:item() == 0):to_be(true)
    expect(gb.grad(sum, leaf):reshape(3, 3)):to_be_close(gb.tensor { { 0.0, -1, 0 }, { -1, 0, 0 }, { 0, 0, -1 } })
  end)
  it("has its module", function()
    local module = nn.CTCLoss { blank = 3, zero_infinity = true, reduction = "sum" }
    expect(module(log_probs, targets - targets:eq(3):long(), steps, lengths)):to_equal_bits(
      F.ctc_loss(log_probs, targets - targets:eq(3):long(), steps, lengths,
        { blank = 3, zero_infinity = true, reduction = "sum" }))
    expect(function() module(log_probs, targets, steps, lengths, x) end):to_fail("one argument more")
  end)
  it("refuses what does not fit", function()
    local function fails(text, ...)
      local given = { ... }
      expect(function() F.ctc_loss(table.unpack(given)):sum():item() end):to_fail(text)
    end
    fails("'blank' is 4", log_probs, targets, steps, lengths, { blank = 4 })
    fails("'blank' is -1, it must be at least 0", log_probs, targets, steps, lengths, { blank = -1 })
    fails("'targets' has shape 2x2", log_probs, targets:narrow(1, 1, 2), steps, lengths)
    fails("'input_lengths' has shape 2", log_probs, targets, gb.tensor { 1, 2 }, lengths)
    fails("'target_lengths' has shape scalar", log_probs, targets, steps, gb.tensor(2))
    fails("'target_lengths' must be an integer", log_probs, targets, steps, lengths:float())
    fails("'log_probs' must be a floating", log_probs:long(), targets, steps, lengths)
    fails("dimensions", log_probs[1][1], targets, steps, lengths)
    fails("a length of 6 is out of range 0 .. 5", log_probs, targets, gb.tensor { 5, 6, 1 }, lengths)
    fails("a length of -1 is out of range 0 .. 5", log_probs, targets, gb.tensor { 5, -1, 1 }, lengths)
    fails("a length of 3 is out of range 0 .. 2", log_probs, targets, steps, gb.tensor { 2, 3, 0 })
    fails("a length of 3 is out of range 0 .. 2", log_probs, gb.tensor { 1, 2, 3, 3 }, steps, gb.tensor { 2, 3, 0 })
    fails("target 4 is out of range 0 .. 3", log_probs, targets + 1, steps, lengths)
    fails("target -1 is out of range 0 .. 3", log_probs, targets - 2, steps, lengths)
  end)
end)

-- ====}

gb.test.finish()
