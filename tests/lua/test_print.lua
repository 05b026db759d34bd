-- test_print.lua - the text of tensors against PyTorch's (torch 2.x, str(tensor)), with our conventions: true and
-- false, dtypes without "torch.", shape=2x3 wherever elements are left out or there are none, requires_grad=true for
-- whatever is in a graph. Two quirks are not followed: beside inf and nan, and for -0., PyTorch gives elements of one
-- line different widths.

local gb = require "gibbous"
gb.set_default_device("cpu") -- elsewhere every tensor tells its device when it is printed
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local texts = {
  { [[gb.tensor({1, 2, 3})]], [=[
tensor([1, 2, 3])]=] },
  { [[gb.tensor({1.5, -2, 3})]], [=[
tensor([ 1.5000, -2.0000,  3.0000])]=] },
  { [[gb.tensor({1.0, 2.0, 3.0})]], [=[
tensor([1., 2., 3.])]=] },
  { [[gb.tensor({{1, -20}, {300, 4}})]], [=[
tensor([[  1, -20],
        [300,   4]])]=] },
  { [[gb.tensor({true, false})]], [=[
tensor([ true, false])]=] },
  { [[gb.tensor(2.5)]], [=[
tensor(2.5000)]=] },
  { [[gb.tensor(7)]], [=[
tensor(7)]=] },
  { [[gb.tensor(true)]], [=[
tensor(true)]=] },
  { [[gb.tensor({})]], [=[
tensor([])]=] },
  { [[gb.zeros(0, 3)]], [=[
tensor([], shape=0x3)]=] },
  { [[gb.zeros(2, 0, {dtype = 'int64'})]], [=[
tensor([], shape=2x0, dtype=int64)]=] },
  { [[gb.zeros(0, {dtype = 'int64'})]], [=[
tensor([], dtype=int64)]=] },
  { [[gb.tensor({1e-5, 1.0})]], [=[
tensor([1.0000e-05, 1.0000e+00])]=] },
  { [[gb.tensor({1e10, 1.0})]], [=[
tensor([1.0000e+10, 1.0000e+00])]=] },
  { [[gb.tensor({1e5, 1.5})]], [=[
tensor([1.0000e+05, 1.5000e+00])]=] },
  { [[gb.tensor({123456.0, 2.0})]], [=[
tensor([1.2346e+05, 2.0000e+00])]=] },
  { [[gb.tensor({0/0, 1.25})]], [=[
tensor([   nan, 1.2500])]=] },
  { [[gb.tensor({0/0})]], [=[
tensor([nan])]=] },
  { [[gb.tensor({0.1, 0.22222, 33.33333}, {dtype = 'float16'})]], [=[
tensor([ 0.1000,  0.2222, 33.3438], dtype=float16)]=] },
  { [[gb.tensor({0.1, 0.22222, 33.33333}, {dtype = 'bfloat16'})]], [=[
tensor([ 0.1001,  0.2227, 33.2500], dtype=bfloat16)]=] },
  { [[gb.tensor({0.1, 0.22222, 33.33333}, {dtype = 'float64'})]], [=[
tensor([ 0.1000,  0.2222, 33.3333], dtype=float64)]=] },
  { [[gb.tensor({1, 2}, {dtype = 'int32'})]], [=[
tensor([1, 2], dtype=int32)]=] },
  { [[gb.tensor({1, 255}, {dtype = 'uint8'})]], [=[
tensor([  1, 255], dtype=uint8)]=] },
  { [[gb.tensor({-128, 127}, {dtype = 'int8'})]], [=[
tensor([-128,  127], dtype=int8)]=] },
  { [[gb.arange(24):reshape(2, 3, 4)]], [=[
tensor([[[ 0,  1,  2,  3],
         [ 4,  5,  6,  7],
         [ 8,  9, 10, 11]],

        [[12, 13, 14, 15],
         [16, 17, 18, 19],
         [20, 21, 22, 23]]])]=] },
  { [[gb.arange(16):reshape(2, 2, 2, 2):float():div(8)]], [=[
tensor([[[[0.0000, 0.1250],
          [0.2500, 0.3750]],

         [[0.5000, 0.6250],
          [0.7500, 0.8750]]],


        [[[1.0000, 1.1250],
          [1.2500, 1.3750]],

         [[1.5000, 1.6250],
          [1.7500, 1.8750]]]])]=] },
  { [[gb.arange(40)]], [=[
tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,
        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35,
        36, 37, 38, 39])]=] },
  { [[gb.arange(1001)]], [=[
tensor([   0,    1,    2,  ...,  998,  999, 1000], shape=1001)]=] },
  { [[gb.arange(10000):reshape(100, 100)]], [=[
tensor([[   0,    1,    2,  ...,   97,   98,   99],
        [ 100,  101,  102,  ...,  197,  198,  199],
        [ 200,  201,  202,  ...,  297,  298,  299],
        ...,
        [9700, 9701, 9702,  ..., 9797, 9798, 9799],
        [9800, 9801, 9802,  ..., 9897, 9898, 9899],
        [9900, 9901, 9902,  ..., 9997, 9998, 9999]], shape=100x100)]=] },
  { [[gb.arange(10000):reshape(100, 100):float():mul(0.5)]], [=[
tensor([[0.0000e+00, 5.0000e-01, 1.0000e+00,  ..., 4.8500e+01, 4.9000e+01,
         4.9500e+01],
        [5.0000e+01, 5.0500e+01, 5.1000e+01,  ..., 9.8500e+01, 9.9000e+01,
         9.9500e+01],
        [1.0000e+02, 1.0050e+02, 1.0100e+02,  ..., 1.4850e+02, 1.4900e+02,
         1.4950e+02],
        ...,
        [4.8500e+03, 4.8505e+03, 4.8510e+03,  ..., 4.8985e+03, 4.8990e+03,
         4.8995e+03],
        [4.9000e+03, 4.9005e+03, 4.9010e+03,  ..., 4.9485e+03, 4.9490e+03,
         4.9495e+03],
        [4.9500e+03, 4.9505e+03, 4.9510e+03,  ..., 4.9985e+03, 4.9990e+03,
         4.9995e+03]], shape=100x100)]=] },
  { [[gb.arange(8000):reshape(20, 20, 20)]], [=[
tensor([[[   0,    1,    2,  ...,   17,   18,   19],
         [  20,   21,   22,  ...,   37,   38,   39],
         [  40,   41,   42,  ...,   57,   58,   59],
         ...,
         [ 340,  341,  342,  ...,  357,  358,  359],
         [ 360,  361,  362,  ...,  377,  378,  379],
         [ 380,  381,  382,  ...,  397,  398,  399]],

        [[ 400,  401,  402,  ...,  417,  418,  419],
         [ 420,  421,  422,  ...,  437,  438,  439],
         [ 440,  441,  442,  ...,  457,  458,  459],
         ...,
         [ 740,  741,  742,  ...,  757,  758,  759],
         [ 760,  761,  762,  ...,  777,  778,  779],
         [ 780,  781,  782,  ...,  797,  798,  799]],

        [[ 800,  801,  802,  ...,  817,  818,  819],
         [ 820,  821,  822,  ...,  837,  838,  839],
         [ 840,  841,  842,  ...,  857,  858,  859],
         ...,
         [1140, 1141, 1142,  ..., 1157, 1158, 1159],
         [1160, 1161, 1162,  ..., 1177, 1178, 1179],
         [1180, 1181, 1182,  ..., 1197, 1198, 1199]],

        ...,

        [[6800, 6801, 6802,  ..., 6817, 6818, 6819],
         [6820, 6821, 6822,  ..., 6837, 6838, 6839],
         [6840, 6841, 6842,  ..., 6857, 6858, 6859],
         ...,
         [7140, 7141, 7142,  ..., 7157, 7158, 7159],
         [7160, 7161, 7162,  ..., 7177, 7178, 7179],
         [7180, 7181, 7182,  ..., 7197, 7198, 7199]],

        [[7200, 7201, 7202,  ..., 7217, 7218, 7219],
         [7220, 7221, 7222,  ..., 7237, 7238, 7239],
         [7240, 7241, 7242,  ..., 7257, 7258, 7259],
         ...,
         [7540, 7541, 7542,  ..., 7557, 7558, 7559],
         [7560, 7561, 7562,  ..., 7577, 7578, 7579],
         [7580, 7581, 7582,  ..., 7597, 7598, 7599]],

        [[7600, 7601, 7602,  ..., 7617, 7618, 7619],
         [7620, 7621, 7622,  ..., 7637, 7638, 7639],
         [7640, 7641, 7642,  ..., 7657, 7658, 7659],
         ...,
         [7940, 7941, 7942,  ..., 7957, 7958, 7959],
         [7960, 7961, 7962,  ..., 7977, 7978, 7979],
         [7980, 7981, 7982,  ..., 7997, 7998, 7999]]], shape=20x20x20)]=] },
  { [[gb.arange(1200):reshape(600, 2):to('float16')]], [=[
tensor([[0.0000e+00, 1.0000e+00],
        [2.0000e+00, 3.0000e+00],
        [4.0000e+00, 5.0000e+00],
        ...,
        [1.1940e+03, 1.1950e+03],
        [1.1960e+03, 1.1970e+03],
        [1.1980e+03, 1.1990e+03]], shape=600x2, dtype=float16)]=] },
  { [[gb.arange(4000):reshape(2, 2000):int()]], [=[
tensor([[   0,    1,    2,  ..., 1997, 1998, 1999],
        [2000, 2001, 2002,  ..., 3997, 3998, 3999]], shape=2x2000, dtype=int32)]=] },
  { [[gb.zeros(3, {requires_grad = true})]], [=[
tensor([0., 0., 0.], requires_grad=true)]=] },
  { [[gb.zeros(3, {requires_grad = true}) * 2]], [=[
tensor([0., 0., 0.], requires_grad=true)]=] },
  { [[gb.arange(12):reshape(3, 4):t()]], [=[
tensor([[ 0,  4,  8],
        [ 1,  5,  9],
        [ 2,  6, 10],
        [ 3,  7, 11]])]=] },
  { [[gb.arange(20):float():mul(1000.125)]], [=[
tensor([    0.0000,  1000.1250,  2000.2500,  3000.3750,  4000.5000,  5000.6250,
         6000.7500,  7000.8750,  8001.0000,  9001.1250, 10001.2500, 11001.3750,
        12001.5000, 13001.6250, 14001.7500, 15001.8750, 16002.0000, 17002.1250,
        18002.2500, 19002.3750])]=] },
  { [[gb.full({2, 2}, 1e-8)]], [=[
tensor([[1.0000e-08, 1.0000e-08],
        [1.0000e-08, 1.0000e-08]])]=] },
  { [[gb.full({2, 2}, 12345678.0)]], [=[
tensor([[12345678., 12345678.],
        [12345678., 12345678.]])]=] },
  { [[gb.full({2}, 123456789.0)]], [=[
tensor([1.2346e+08, 1.2346e+08])]=] },
  { [[gb.tensor({1e-4, 2e-4})]], [=[
tensor([1.0000e-04, 2.0000e-04])]=] },
  { [[gb.tensor(-9223372036854775807)]], [=[
tensor(-9223372036854775807)]=] },
  { [[gb.zeros(1, 1, 1)]], [=[
tensor([[[0.]]])]=] },
  { [[gb.arange(30):float():div(7):reshape(2, 15)]], [=[
tensor([[0.0000, 0.1429, 0.2857, 0.4286, 0.5714, 0.7143, 0.8571, 1.0000, 1.1429,
         1.2857, 1.4286, 1.5714, 1.7143, 1.8571, 2.0000],
        [2.1429, 2.2857, 2.4286, 2.5714, 2.7143, 2.8571, 3.0000, 3.1429, 3.2857,
         3.4286, 3.5714, 3.7143, 3.8571, 4.0000, 4.1429]])]=] },
  { [[gb.tensor({0/0, 1.0, math.huge, -math.huge})]], [=[
tensor([ nan,   1.,  inf, -inf])]=] },
  { [[gb.tensor({-0.0, 0.0})]], [=[
tensor([-0.,  0.])]=] },
}

describe("tostring", function()
  for _, row in ipairs(texts) do
    it(row[1], function() expect(tostring(assert(load("local gb = ... return " .. row[1]))(gb))):to_be(row[2]) end)
  end
  it("of a freed tensor says so", function()
    local x = gb.ones(2)
    x:free()
    expect(tostring(x)):to_be("tensor (freed)")
  end)
  it("is what .. joins", function()
    expect("x = " .. gb.tensor(3)):to_be("x = tensor(3)")
    expect(gb.tensor(3) .. "!"):to_be("tensor(3)!")
    expect(gb.ones(2, 3).shape .. ""):to_be("{2, 3}")
  end)
end)

describe("looks at no more than it prints", function()
  it("in an expanded tensor of 10^15 elements", function()
    local huge = gb.ones(1, 1, 1):expand(100000, 100000, 100000)
    local start = os.clock()
    local text = tostring(huge)
    expect(os.clock() - start < 0.5):to_be(true)
    expect(text:find("shape=100000x100000x100000", 1, true) ~= nil):to_be(true)
    expect(#text < 2000):to_be(true)
  end)
  it("in a slice of one", function()
    local huge = gb.arange(4):reshape(4, 1):expand(4, 1 << 40)
    expect(tostring(huge:select(1, 3))):to_be("tensor([2, 2, 2,  ..., 2, 2, 2], shape=1099511627776)")
  end)
  it("in an empty tensor with a huge dimension", function()
    expect(tostring(gb.zeros(0):reshape(0, 1):expand(0, 1 << 40))):to_be("tensor([], shape=0x1099511627776)")
  end)
end)

describe("set_printoptions", function()
  local usual = { precision = 4, threshold = 1000, edge_items = 3, line_width = 80, scientific = "auto" }
  local function with(options, fn)
    gb.set_printoptions(options)
    local ok, why = pcall(fn)
    gb.set_printoptions(usual)
    if not ok then error(why, 0) end
  end
  it("precision", function() with({ precision = 2 },
    function() expect(tostring(gb.tensor { 1 / 3 })):to_be("tensor([0.33])") end) end)
  it("threshold and edge_items", function()
    with({ threshold = 4, edge_items = 1 },
      function() expect(tostring(gb.arange(5))):to_be("tensor([0,  ..., 4], shape=5)") end)
  end)
  it("line_width", function()
    with({ line_width = 20 }, function() expect(tostring(gb.arange(8))):to_be("tensor([0, 1, 2, 3,\n        4, 5, \z
      6, 7])") end)
  end)
  it("scientific: always, never, or where the values ask for it", function()
    local plain, spread = gb.tensor { 1.5, 2 }, gb.tensor { 1e-6, 1e6 }
    with({ scientific = true }, function() expect(tostring(plain)):to_be("tensor([1.5000e+00, 2.0000e+00])") end)
    with({ scientific = false }, function() expect(tostring(spread):find("e", 8, true)):to_be(nil) end)
    expect(tostring(plain)):to_be("tensor([1.5000, 2.0000])")
    expect(tostring(spread)):to_be("tensor([1.0000e-06, 1.0000e+06])")
  end)
  it("refuses what makes no sense", function()
    for _, options in ipairs { { scientific = "maybe" }, { precision = -1 }, { precision = 2.5 }, { line_width = 0 },
      { edge_items = -5 }, { edge_items = 0 }, { threshold = -1 }, { precison = 3 } } do
      local ok, why = pcall(gb.set_printoptions, options)
      gb.set_printoptions(usual)
      expect(ok):to_be(false)
      expect(why:find("set_printoptions", 1, true) ~= nil):to_be(true)
    end
    expect(function() gb.set_printoptions { precison = 3 } end):to_fail("precision")
  end)
end)

gb.test.finish()
