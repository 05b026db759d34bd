-- test_weights.lua - weights computed before every forward: weight_norm and spectral_norm, what is trained, and the way
-- back.

local gb = require "gibbous"
local nn, F, utils = gb.nn, gb.nn.functional, gb.nn.utils
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- The names of a module's parameters, sorted.
local function names_of(module)
  local names = {}
  for name in module:named_parameters() do names[#names + 1] = name end
  table.sort(names)
  return table.concat(names, " ")
end

describe("weight_norm", function()
  local x = gb.randn(3, 4)
  it("computes what was there, and trains length and direction", function()
    local layer = nn.Linear(4, 2)
    local before, weight = layer(x):detach(), layer.weight
    expect(utils.weight_norm(layer) == layer):to_be(true)
    expect(names_of(layer)):to_be("bias weight_g weight_v")
    expect(layer(x)):to_be_close(before, 1e-6)
    expect(layer.weight_g.shape[2]):to_be(1)
    layer(x):pow(2):sum():backward()
    local v, g = weight:detach():clone():requires_grad_(), layer.weight_g:detach():clone():requires_grad_()
    F.linear(x, v / v:norm(2, 2, { keepdim = true }) * g, layer.bias:detach()):pow(2):sum():backward()
    expect(layer.weight_v.grad):to_be_close(v.grad, 1e-4)
    expect(layer.weight_g.grad):to_be_close(g.grad, 1e-4)
  end)
  it("takes any dim of a convolution", function()
    local conv = utils.weight_norm(nn.Conv2d(3, 5, 3), { dim = 2 })
    expect(table.concat(conv.weight_g.shape, "x")):to_be("1x3x1x1")
    expect(conv(gb.randn(1, 3, 4, 4))):to_have_shape { 1, 5, 2, 2 }
  end)
  it("goes back to one parameter", function()
    local layer = utils.weight_norm(nn.Linear(4, 2))
    gb.no_grad(function() layer.weight_g:mul_(2) end)
    local y = layer(x):detach()
    utils.remove_weight_norm(layer)
    expect(names_of(layer)):to_be("bias weight")
    expect(layer(x)):to_be_close(y, 1e-6)
  end)
  it("says what is wrong", function()
    local layer = utils.weight_norm(nn.Linear(4, 2))
    expect(function() utils.weight_norm(layer) end):to_fail("already")
    expect(function() utils.weight_norm(nn.ReLU()) end):to_fail("no parameter 'weight'")
    expect(function() utils.weight_norm(nn.Linear(2, 2), { name = "kernel" }) end):to_fail("kernel")
    expect(function() utils.weight_norm(nn.Linear(2, 2), { dim = 3 }) end):to_fail("no dimension 3")
    expect(function() utils.remove_spectral_norm(layer) end):to_fail("not computed by spectral_norm")
  end)
end)

describe("spectral_norm", function()
  local x = gb.randn(3, 6)
  it("brings the largest singular value to 1", function()
    local layer = utils.spectral_norm(nn.Linear(6, 5), { n_power_iterations = 50 })
    for _ = 1, 4 do layer(x) end
    local w = layer.weight:detach()
    local v = gb.randn(6)
    for _ = 1, 200 do
      v = w:t():matmul(w:matmul(v))
      v = v / v:norm()
    end
    expect(math.abs(w:matmul(v):norm():item() - 1) < 1e-3):to_be(true)
    expect(names_of(layer)):to_be("bias weight_orig")
  end)
  it("iterates in training only, and through gradients", function()
    local layer = utils.spectral_norm(nn.Linear(6, 5))
    local u = layer.weight_u:clone()
    layer:eval()(x)
    expect(layer.weight_u):to_equal_bits(u)
    layer:train()(x):sum():backward()
    expect(layer.weight_u:ne(u):any():item()):to_be(true)
    local left, right, w = layer.weight_u:clone(), layer.weight_v:clone(),
      layer.weight_orig:detach():clone():requires_grad_()
    F.linear(x, w / left:dot(w:matmul(right)), layer.bias:detach()):sum():backward()
    expect(layer.weight_orig.grad):to_be_close(w.grad, 1e-4)
  end)
  it("works on a convolution, beside a copy of its state, and back", function()
    local conv = utils.spectral_norm(nn.Conv2d(3, 4, 3))
    local image = gb.randn(1, 3, 5, 5)
    conv(image)
    local other = utils.spectral_norm(nn.Conv2d(3, 4, 3))
    other:load_state_dict(conv:state_dict())
    local y = conv:eval()(image):detach()
    expect(other:eval()(image)):to_equal_bits(y)
    expect(utils.remove_spectral_norm(conv)(image)):to_be_close(y, 1e-6)
    expect(names_of(conv)):to_be("bias weight")
  end)
end)

gb.test.finish()
