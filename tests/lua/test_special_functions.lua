-- test_special_functions.lua - lgamma, digamma, polygamma and i0, whose formulas are the library's own, against 40
-- digits made with mpmath.
--
-- In float64 each is right to 1e-13 relative; in float32 it is the float64 value, rounded.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local function polygamma(n) return function(x) return x:polygamma(n) end end
local functions = {
  { "lgamma", gb.lgamma, {
    { 1e-300, 690.77552789821371 }, { 1e-20, 46.051701859880914 }, { 0.015625, 4.1500633736539388 },
    { 0.4375, 0.70547614598544527 }, { 0.5625, 0.45865546152224516 }, { 1.0000152587890625, -8.8074205801979052e-6 },
    { 0.999969482421875, 1.761599014210986e-5 }, { 1.4375, -0.12120242719902266 }, { 1.5625, -0.1167086833813167 },
    { 2.0000152587890625, 6.4512520681644922e-6 }, { 1.99993896484375, -2.5803506654161686e-5 },
    { 2.4375, 0.24170306649034579 }, { 2.5625, 0.32957841924710282 }, { 5.75, 4.3667160366222863 },
    { 9.875, 12.521183639183654 }, { 10.125, 13.084114592176066 }, { 100.5, 361.43554046777762 },
    { 12345.678, 103959.91990554606 }, { 1e+20, 4.5051701859880914e+21 }, { 1e+300, 6.8977552789821374e+302 },
    { -1e-20, 46.051701859880914 }, { -0.3125, 1.4394918822723423 }, { -1.75, 1.0160888092144357 },
    { -3.40625, -1.1358873838119173 }, { -10.125, -13.293845140389538 }, { -1000.3125, -5912.9577666229386 },
  } },
  { "digamma", gb.digamma, {
    { 1e-20, -1.0000000000000001e+20 }, { 0.015625, -64.551802973167857 }, { 0.5, -1.9635100260214235 },
    { 1.0, -0.57721566490153286 }, { 1.375, -0.087332382478472909 }, { 1.4616241455078125, -7.7408842857882479e-6 },
    { 1.5625, 0.09335158012628179 }, { 2.0, 0.42278433509846714 }, { 9.875, 2.2385197075906873 },
    { 10.125, 2.2648128020191512 }, { 12345.678, 9.4210208207417609 }, { 1e+20, 46.051701859880914 },
    { -1e-20, 1.0000000000000001e+20 }, { -0.3125, 1.944039523963064 }, { -1.75, -2.3226916286143606 },
    { -10.125, 9.9480538258660761 }, { -1000.3125, 9.0077125908546329 },
  } },
  { "polygamma 1", polygamma(1), {
    { 1e-10, 9.9999999999999993e+19 }, { 0.015625, 4097.6081469812325 }, { 0.5, 4.9348022005446793 },
    { 1.0, 1.6449340668482264 }, { 2.25, 0.55732915450711074 }, { 9.875, 0.10656593004328111 },
    { 14.5, 0.071398256151646958 }, { 150.25, 0.0066777715123718275 }, { -1e-10, 9.9999999999999993e+19 },
    { -0.3125, 13.156556547513613 }, { -1.75, 19.301637544529786 }, { -10.125, 67.299826017487103 },
    { -1000.3125, 14.27501536459278 },
  } },
  { "polygamma 2", polygamma(2), {
    { 1e-10, -1.9999999999999998e+30 }, { 0.015625, -524290.30560802492 }, { 0.5, -16.82879664423432 },
    { 1.0, -2.4041138063191886 }, { 2.25, -0.30373993753692033 }, { 9.875, -0.011345626467709948 },
    { 14.5, -0.005095552370983587 }, { 150.25, -4.4592466667552568e-5 }, { -1e-10, 1.9999999999999998e+30 },
    { -0.3125, 58.765869516630988 }, { -1.75, -124.21382135423058 }, { -10.125, 1022.2855522692186 },
    { -1000.3125, 59.934850998088807 },
  } },
  { "polygamma 5", polygamma(5), {
    { 1e-10, 1.1999999999999997e+62 }, { 0.015625, 8246337208431.3302 }, { 0.5, 7691.1135486024355 },
    { 1.0, 122.0811674381339 }, { 2.25, 1.0564876812920459 }, { 9.875, 0.00032677383964315165 },
    { 14.5, 4.4342013570719089e-5 }, { 150.25, 3.1867858445460181e-10 }, { -1e-10, 1.1999999999999997e+62 },
    { -0.3125, 129991.0352336315 }, { -1.75, 492230.93030187432 }, { -10.125, 31457611.065589659 },
    { -1000.3125, 130015.41213376614 },
  } },
  { "polygamma 20", polygamma(20), {
    { 1e-10, -2.4329020081766381e+228 }, { 0.015625, -2.0696841345726286e+56 }, { 0.5, -5.1021653127394299e+24 },
    { 1.0, -2.4329031685078613e+18 }, { 2.25, -97832855220.435483 }, { 9.875, -0.0036676246493527278 },
    { 14.5, -1.3331369073586822e-6 }, { 150.25, -3.7793679634984023e-27 }, { -1e-10, 2.4329020081766381e+228 },
    { -0.3125, 9.8690223751638238e+28 }, { -1.75, -1.0700016187896298e+31 }, { -10.125, 2.243956035062425e+37 },
    { -1000.3125, 9.8690223751646293e+28 },
  } },
  { "i0", gb.i0, {
    { 1e-10, 1.0 }, { 0.5, 1.0634833707413235 }, { -3.25, 5.9893359979395184 }, { 10.0, 2815.7166284662545 },
    { 19.96875, 42251592.460430679 }, { 20.03125, 44905440.195071175 }, { -50.5, 4.8108472665807057e+20 },
    { 700.0, 1.5295933476718737e+302 },
  } },
}

for _, row in ipairs(functions) do
  describe(row[1], function()
    for _, pair in ipairs(row[3]) do
      local x, want = pair[1], pair[2]
      it(("at %.17g"):format(x), function()
        local y = row[2](gb.tensor({ x }, { dtype = "float64" })):item()
        if not (math.abs(y - want) <= 1e-13 * math.abs(want)) then error(("%.17g, expected %.17g"):format(y, want)) end
      end)
    end
    it("is the same rounded in float32", function()
      local points = {}
      for _, pair in ipairs(row[3]) do points[#points + 1] = pair[1] end
      local x = gb.tensor(points, { dtype = "float32" })
      expect(row[2](x)):to_equal_bits(row[2](x:double()):float())
    end)
  end)
end

describe("poles", function()
  it("are where gamma's are", function()
    local x = gb.tensor({ 0, -0.0, -1, -7, -1 / 0 }, { dtype = "float64" })
    expect(x:lgamma():isinf():all():item()):to_be(true)
    expect(x:polygamma(1):narrow(1, 1, 4):isposinf():all():item()):to_be(true)
    expect(x:polygamma(2):narrow(1, 1, 4):isneginf():all():item()):to_be(true)
    expect(x:digamma():narrow(1, 3, 3):isnan():all():item()):to_be(true)
    expect(x:digamma()[1]:item()):to_be(-1 / 0)
    expect(x:digamma()[2]:item()):to_be(1 / 0)
  end)
end)

describe("wrong options", function()
  local F, x = gb.nn.functional, gb.ones(2)
  it("polygamma counts whole derivatives", function()
    expect(function() x:polygamma(0.5) end):to_fail("whole number")
    expect(function() x:polygamma(-1) end):to_fail("at least 0")
    expect(function() x:polygamma(171) end):to_fail("at most 170")
  end)
  it("bounds that cross, shrinking by less than nothing, division by alpha", function()
    expect(function() F.hardtanh(x, 2, 1) end):to_fail("must not be smaller")
    expect(function() F.softshrink(x, -1) end):to_fail("at least 0")
    expect(function() F.celu(x, 0) end):to_fail("'alpha' is 0")
  end)
  it("hypot and logaddexp want a float among their operands", function()
    local whole = gb.ones(2, { dtype = "int64" })
    expect(function() gb.hypot(whole, whole) end):to_fail("floating")
    expect(gb.hypot(whole, x).dtype):to_be("float32")
    expect(function() gb.logaddexp(whole, whole) end):to_fail("floating")
  end)
end)

gb.test.finish()
