-- test_devices.lua - asking for devices: what is there, why something is not, and where tensors are made by default.

local gb = require "gibbous"
gb.set_default_device("cpu") -- this is about what is there without being asked for
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

describe("devices", function()
  it("the CPU is always there", function()
    expect(gb.devices()[1]):to_be("cpu")
    expect(gb.device("cpu")):to_be("cpu")
    expect(gb.get_default_device()):to_be("cpu")
  end)

  it("without a CUDA device the reason is given, and repeated by whoever asks for one", function()
    local there, why = gb.cuda.is_available()
    expect(gb.cuda.device_count() >= 1):to_be(there)
    expect(#gb.devices()):to_be(1 + gb.cuda.device_count())
    expect(gb.best_device()):to_be(there and "cuda" or "cpu")
    if there then return expect(why):to_be(nil) end
    expect(#why > 10):to_be(true)
    expect(function() gb.zeros(2, { device = "cuda" }) end):to_fail(why)
    expect(function() gb.set_default_device("cuda") end):to_fail(why)
    expect(gb.ones(2).device):to_be("cpu")
  end)

  it("unknown names are errors", function()
    expect(function() gb.device("tpu") end):to_fail("unknown device 'tpu'")
    expect(function() gb.set_default_device("tpu") end):to_fail("unknown device 'tpu'")
    expect(function() gb.set_default_device(1) end):to_fail("'device' must be a device")
  end)
end)

gb.test.finish()
