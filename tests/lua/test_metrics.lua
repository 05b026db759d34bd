-- test_metrics.lua - gb.Metrics: measures are exact however the samples are cut into batches, and are what their
-- definitions say, computed here one element at a time.

local gb = require "gibbous"
gb.set_default_device("cpu")
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F, nan = gb.nn.functional, 0 / 0

-- The rows of x from place to place.
local function rows(x, first, last) return x:narrow(1, first, last - first + 1) end

-- What the measures are over batches of these sizes.
local function over(spec, output, target, sizes)
  local metrics, at = gb.Metrics(spec), 1
  for _, n in ipairs(sizes) do
    metrics:update(rows(output, at, at + n - 1), rows(target, at, at + n - 1))
    at = at + n
    local other = gb.Metrics(spec) -- which goes on from the state
    other:load_state_dict(metrics:state_dict())
    metrics = other
  end
  return metrics:compute()
end

local cuts = { { 60 }, { 1, 59 }, { 20, 20, 20 }, { 7, 1, 30, 2, 20 } }

-- The same for every way to cut, within rounding of sums in float64.
local function for_cuts(spec, output, target, check)
  for _, sizes in ipairs(cuts) do check(over(spec, output, target, sizes)) end
end

describe("metrics of classes", function()
  gb.manual_seed(11)
  local scores, labels = gb.randn(60, 4), gb.randint(0, 4, { 60 })
  labels[{ { 5, 9 } }] = -100
  local guess, truth = scores:argmax(-1):tolist(), labels:tolist()
  local all = scores:tolist()

  it("count hits, of labels that are not ignored", function()
    local hits, count = 0, 0
    for i = 1, 60 do
      if truth[i] ~= -100 then hits, count = hits + (guess[i] == truth[i] and 1 or 0), count + 1 end
    end
    for_cuts({ "accuracy" }, scores, labels, function(values) expect(values.accuracy):to_be(hits / count) end)
  end)
  it("count those among the k best, of equal scores the first", function()
    for k = 1, 4 do
      local hits = 0
      for i = 1, 60 do
        local before = 0
        for c = 1, 4 do
          local t = truth[i] + 1
          local counts = truth[i] ~= -100
          if counts and (all[i][c] > all[i][t] or all[i][c] == all[i][t] and c < t) then before = before + 1 end
        end
        if truth[i] ~= -100 and before < k then hits = hits + 1 end
      end
      for_cuts({ best = { "top_k", k = k } }, scores, labels, function(v) expect(v.best):to_be(hits / 55) end)
    end
    local metrics = gb.Metrics { first = { "top_k", k = 1 }, second = { "top_k", k = 2 } }
    metrics:update(gb.tensor { { 1, 1, 1 }, { 1, 1, 1 }, { 0, nan, 1 } }, gb.tensor { 0, 1, 1 })
    expect(metrics:compute().first):to_be(1 / 3)
    expect(metrics:compute().second):to_be(2 / 3)
  end)
  -- By class: right, said, there.
  local function counts()
    local c = {}
    for k = 0, 3 do
      c[k] = { 0, 0, 0 }
      for i = 1, 60 do
        if truth[i] ~= -100 then
          if guess[i] == k and truth[i] == k then c[k][1] = c[k][1] + 1 end
          if guess[i] == k then c[k][2] = c[k][2] + 1 end
          if truth[i] == k then c[k][3] = c[k][3] + 1 end
        end
      end
    end
    return c
  end
  it("have f1, dice and iou, averaged in each way", function()
    local c, macro, weighted, iou, right = counts(), 0, 0, 0, 0
    for k = 0, 3 do
      local f = 2 * c[k][1] / (c[k][2] + c[k][3])
      macro, weighted, right = macro + f / 4, weighted + f * c[k][3] / 55, right + c[k][1]
      iou = iou + c[k][1] / (c[k][2] + c[k][3] - c[k][1]) / 4
    end
    local spec = { "f1", "dice", "iou", w = { "f1", average = "weighted" }, m = { "f1", average = "micro" },
      one = { "iou", average = "binary" } }
    for_cuts(spec, scores, labels, function(values)
      expect(values.f1):to_be_near(macro, 1e-12)
      expect(values.dice):to_be(values.f1)
      expect(values.iou):to_be_near(iou, 1e-12)
      expect(values.w):to_be_near(weighted, 1e-12)
      expect(values.m):to_be_near(right / 55, 1e-12)
      expect(values.one):to_be_near(c[1][1] / (c[1][2] + c[1][3] - c[1][1]), 1e-12)
    end)
    local absent = gb.Metrics { "f1" } -- a class that neither occurs nor is predicted does not count
    absent:update(gb.tensor { { 1, 0, 0 }, { 0, 1, 0 } }, gb.tensor { 0, 1 })
    expect(absent:compute().f1):to_be(1.0)
  end)
  it("have the perplexity of all tokens", function()
    local sum = 0
    for i = 1, 60 do
      if truth[i] ~= -100 then
        local total = 0
        for c = 1, 4 do total = total + math.exp(all[i][c]) end
        sum = sum + math.log(total) - all[i][truth[i] + 1]
      end
    end
    for_cuts({ "perplexity" }, scores, labels, function(v)
      expect(v.perplexity):to_be_near(math.exp(sum / 55), 1e-6)
    end)
  end)
  it("take the dimension of classes as cross_entropy has it, the last, or a given one", function()
    local y = gb.randint(0, 3, { 5, 4 })
    local x = gb.randn(5, 3, 4)
    local expected = F.cross_entropy(x, y):exp():item()
    local a, b = gb.Metrics { "perplexity" }, gb.Metrics { "perplexity" }
    a:update(x, y)
    b:update(x:transpose(2, 3), y)
    expect(a:compute().perplexity):to_be_near(expected, 1e-5)
    expect(b:compute().perplexity):to_be_near(expected, 1e-5)
    local square = gb.randn(5, 4, 4) -- both would fit
    local c = gb.Metrics { p = { "perplexity", dim = -1 } }
    c:update(square, gb.randint(0, 4, { 5, 4 }))
    expect(c:compute().p > 1):to_be(true)
  end)
  it("take targets of any integers, of booleans and of floats that are 0 or 1", function()
    for _, dtype in ipairs { "int64", "int32", "uint8", "bool", "float32" } do
      local metrics = gb.Metrics { "f1", "accuracy", "auc" }
      metrics:update(gb.tensor { -1.0, 2.0, 3.0, -2.0 }, gb.tensor { 0, 1, 0, 1 }:to(dtype))
      expect(metrics:compute().f1):to_be(0.5)
      expect(metrics:compute().auc):to_be(0.25)
    end
  end)
  it("segment: masks of one score, and of classes", function()
    local metrics = gb.Metrics { "iou", "dice", "accuracy" }
    local mask = gb.tensor { { { 0, 1 }, { 1, 1 } } }
    metrics:update(gb.tensor { { { { -1.0, 2.0 }, { 3.0, -2.0 } } } }, mask)
    expect(metrics:compute().iou):to_be_near(2 / 3, 1e-12)
    expect(metrics:compute().dice):to_be_near(0.8, 1e-12)
    expect(metrics:compute().accuracy):to_be(0.75)
    local booleans = gb.Metrics { "iou" } -- a mask of true and false says the same
    booleans:update(gb.tensor { { { { -1.0, 2.0 }, { 3.0, -2.0 } } } }, mask:eq(1))
    expect(booleans:compute().iou):to_be_near(2 / 3, 1e-12)
    local classes = gb.Metrics { "iou" }
    classes:update(gb.tensor { { { { 1.0, -1.0 }, { -1.0, 1.0 } }, { { 0.0, 0.0 }, { 0.0, 0.0 } } } }, mask)
    expect(classes:compute().iou):to_be_near((1 / 2 + 2 / 3) / 2, 1e-12)
  end)
end)

describe("the area under the ROC curve", function()
  gb.manual_seed(12)
  local scores = (gb.randn(60) * 3):round() / 3 -- with ties
  local labels = gb.randint(0, 2, { 60 })
  local s, t = scores:tolist(), labels:tolist()
  local wins, pairs_ = 0, 0
  for i = 1, 60 do
    for j = 1, 60 do
      if t[i] == 1 and t[j] == 0 then
        pairs_ = pairs_ + 1
        wins = wins + (s[i] > s[j] and 1 or s[i] == s[j] and 0.5 or 0)
      end
    end
  end
  it("counts pairs, equal ones half", function()
    for_cuts({ "auc" }, scores, labels, function(v) expect(v.auc):to_be_near(wins / pairs_, 1e-12) end)
    local two = gb.stack({ gb.zeros(60), scores }, 2)
    for_cuts({ "auc" }, two, labels, function(v) expect(v.auc):to_be_near(wins / pairs_, 1e-12) end)
  end)
  it("of bins lies within the error that it states", function()
    for _, bins in ipairs { 2, 10, 1000 } do
      for_cuts({ auc = { "auc", bins = bins } }, scores, labels, function(values)
        expect(math.abs(values.auc - wins / pairs_) <= values.auc_error + 1e-12):to_be(true)
      end)
    end
  end)
  it("is NaN where one class is missing, and only of two", function()
    local metrics = gb.Metrics { "auc" }
    metrics:update(gb.rand(3), gb.ones(3, { dtype = "int64" }))
    local value = metrics:compute().auc
    expect(value ~= value):to_be(true)
    expect(function() metrics:update(gb.rand(3, 3), gb.tensor { 0, 1, 2 }) end):to_fail("auc is of two classes")
  end)
  it("have no area under the curve where a score is NaN", function()
    for _, bins in ipairs { 0, 8 } do
      for _, targets in ipairs { { 1, 0, 0 }, { 0, 1, 0 } } do
        local spec = { auc = { "auc", bins = bins } }
        local values = over(spec, gb.tensor { nan, 0.5, 0.3 }, gb.tensor(targets, { dtype = "int64" }), { 1, 2 })
        expect(values.auc ~= values.auc):to_be(true)
        expect(over(spec, gb.tensor { 0.1, 9.5, -0.3 }, gb.tensor { 0, 1, 0 }, { 1, 2 }).auc):to_be(1.0)
        if bins > 0 then expect(values.auc_error ~= values.auc_error):to_be(true) end
      end
    end
  end)
end)

describe("metrics of regressions", function()
  gb.manual_seed(13)
  local y, t = gb.randn(60, 2) + 1000, gb.randn(60, 2) + 1000
  local a, b = y:double():reshape(-1):tolist(), t:double():reshape(-1):tolist()
  local n, mean, absolute, square, total = #a, 0, 0, 0, 0
  for i = 1, n do mean = mean + b[i] / n end
  for i = 1, n do
    absolute, square = absolute + math.abs(a[i] - b[i]), square + (a[i] - b[i]) ^ 2
    total = total + (b[i] - mean) ^ 2
  end
  it("are exact for uneven batches, far from zero too", function()
    for_cuts({ "mae", "mse", "rmse", "r2" }, y, t, function(values)
      expect(values.mae):to_be_near(absolute / n, 1e-12)
      expect(values.mse):to_be_near(square / n, 1e-12)
      expect(values.rmse):to_be_near(math.sqrt(square / n), 1e-12)
      expect(values.r2):to_be_near(1 - square / total, 1e-9)
    end)
  end)
  it("take a function of one's own", function()
    local function most(output, target) return (output - target):abs():gt(1):sum(), target:numel() end
    local far = 0
    for i = 1, n do far = far + (math.abs(a[i] - b[i]) > 1 and 1 or 0) end
    for_cuts({ far = most }, y, t, function(v) expect(v.far):to_be_near(far / n, 1e-12) end)
  end)
end)

describe("gb.Metrics", function()
  it("begins anew, is NaN where there was nothing, and reads 16-bit outputs", function()
    local metrics = gb.Metrics { "accuracy", "mae", "f1", "perplexity", "r2", "auc" }
    for _, value in pairs(metrics:compute()) do expect(value ~= value):to_be(true) end
    local half = gb.Metrics { "accuracy" }
    half:update(gb.tensor { { 1.0, 2.0 } }:to("bfloat16"), gb.tensor { 1 })
    expect(half:compute().accuracy):to_be(1.0)
    half:reset()
    expect(half:compute().accuracy ~= half:compute().accuracy):to_be(true)
    half:update(gb.zeros(0, 2), gb.zeros(0, { dtype = "int64" }))
    half:update(gb.zeros(2, 2), gb.full({ 2 }, -100))
    expect(half:compute().accuracy ~= half:compute().accuracy):to_be(true)
    expect(tostring(metrics)):to_be("Metrics (accuracy, auc, f1, mae, perplexity, r2)")
  end)
  it("are, merged batch by batch, those of all batches, to the bit", function()
    local function of(output, target, classes)
      local names = classes and { "accuracy", "top_k", "f1", "iou", "perplexity" } or
        { "mae", "mse", "r2", auc = { "auc", threshold = 0.5 }, bins = { "auc", bins = 16 },
          own = function(a, b) return (a - b):sum(), 3 end }
      local whole, merged = gb.Metrics(names), gb.Metrics(names)
      local at = 1
      for _, n in ipairs { 3, 1, 7, 5 } do
        local part = gb.Metrics(names)
        for _, metrics in ipairs { whole, part } do
          metrics:update(output:narrow(1, at, n), target:narrow(1, at, n))
        end
        merged:merge(part:state_dict())
        at = at + n
      end
      local a, b = whole:compute(), merged:compute()
      for name, value in pairs(a) do expect(b[name]):to_be(value) end
    end
    of(gb.randn(16, 7), gb.randint(0, 7, { 16 }), true)
    of(gb.randn(16), (gb.arange(16) % 2):float(), false)
    expect(function() gb.Metrics({ "mae" }):merge({}) end):to_fail("merge: the state has no 'mae'")
  end)
  it("turn down states of other options, and what is no state", function()
    local scores, labels = gb.randn(8), (gb.arange(8) % 2):float()
    local kept, binned, more = gb.Metrics { "auc" }, gb.Metrics { auc = { "auc", bins = 4 } },
      gb.Metrics { auc = { "auc", bins = 5 } }
    for _, metrics in ipairs { kept, binned, more } do metrics:update(scores, labels) end
    for _, a in ipairs { kept, binned, more } do
      for _, b in ipairs { kept, binned, more } do
        if a ~= b then
          expect(function() a:load_state_dict(b:state_dict()) end):to_fail("that of a measure with other options")
          expect(function() a:merge(b:state_dict()) end):to_fail("that of a measure with other options")
        end
      end
    end
    expect(function() gb.Metrics({ "f1" }):merge({ f1 = { right = { "1" }, said = { 1 }, there = { 1 },
      single = false } }) end):to_fail("the state has no 'f1'")
  end)
  it("says what is wrong", function()
    local x, y = gb.rand(4, 3), gb.tensor { 0, 1, 2, 0 }
    local wrong = {
      { function() gb.Metrics {} end, "there is no measure" },
      { function() gb.Metrics { "acuracy" } end, "did you mean 'accuracy'?" },
      { function() gb.Metrics { 3 } end, "" },
      { function() gb.Metrics { "mae", "mae" } end, "is there twice" },
      { function() gb.Metrics { a = { "f1", averag = "macro" } } end, "did you mean 'average'?" },
      { function() gb.Metrics { a = { "f1", average = "mean" } } end, "must be macro, micro, weighted or binary" },
      { function() gb.Metrics { a = { "top_k", k = 0 } } end, "'k' of a must be a whole number from 1" },
      { function() gb.Metrics { a = { "auc", bins = 1 << 40 } } end, "'bins' of a must be" },
      { function() gb.Metrics { a = { "accuracy", threshold = nan } } end, "'threshold' of a must be a number" },
      { function() gb.Metrics { a = { "accuracy", dim = 0 } } end, "'dim' of a must be a dimension" },
      { function() gb.Metrics({ "accuracy" }):update(x, gb.tensor { 0, 1 }) end, "does not fit the target" },
      { function() gb.Metrics({ "f1" }):update(x, gb.tensor { 0, 1, 2, 3 }) end, "a target is 3; classes are 0 to 2" },
      { function() gb.Metrics({ "f1" }):update(x, gb.tensor { 0, -1, 2, 1 }) end, "a target is -1" },
      { function() gb.Metrics({ "top_k" }):update(gb.rand(4), y) end, "top_k needs an output with classes" },
      { function() gb.Metrics({ "mae" }):update(gb.rand(4), gb.rand(5)) end, "does not fit the target" },
      { function() gb.Metrics({ a = function() return "x" end }):update(x, y) end, "the function gave a string" },
      { function() gb.Metrics({ "mae" }):load_state_dict({}) end, "the state has no 'mae'" },
      { function() gb.Metrics({ "mae" }):update(x) end, "'target' is missing" },
    }
    for _, row in ipairs(wrong) do expect(row[1]):to_fail(row[2]) end
  end)
end)

gb.test.finish()
