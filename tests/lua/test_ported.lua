-- test_ported.lua - lines as somebody writes them who knows PyTorch: each is answered by what it is called here, not by
-- an error of Lua's own.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn = gb.nn

-- A line, and what its error says.
local lines = {
  { "for p in model:parameters() do end", "for i, p in ipairs(model:parameters()) do" },
  { "for _, m in model:children() do end", "ipairs(model:children())" },
  { "for m in model:modules() do end", "ipairs(model:modules())" },
  { "for b in model:buffers() do end", "ipairs(model:buffers())" },
  { "for name, m in model:named_children() do end", "local name, child = entry[1], entry[2]" },
  { "for layer in model do end", "for i, module in ipairs(model) do" },
  { "model.forward(x)", "model:forward(x)" },
  { "x:reshape(table.unpack({}))", "without dimensions is {}" },
  { "gb.ones(1):view()", "without dimensions is {}" },
  { "return x.T", "x:t()" },
  { "gb.utils.checkpoint.checkpoint(model, x)", "gb.recompute" },
  { "return x.data", "x:detach()" },
  { "return x:numpy()", "x:tolist()" },
  { "return x['repeat'](x, 2)", "x:tile(...)" },
  { "return x:max(1).values", "local values, indices = x:max(dim)" },
  { "return x.is_cuda", "x.device ~= \"cpu\"" },
  { "x:sum({ axis = 1 })", "it is 'dim' here" },
  { "x:var(1, { unbiased = false })", "'correction' here: 0" },
  { "x:flatten({ start_dim = 1 })", "it is 'first' here" },
  { "F.relu(x, { inplace = true })", "methods of tensors that end in '_'" },
  { "nn.ReLU({ inplace = true })", "methods of tensors that end in '_'" },
  { "nn.LeakyReLU(0.2, { inplace = true })", "methods of tensors that end in '_'" },
  { "nn.LeakyReLU(0.2, true)", "such as { slope = ... }" },
  { "nn.MaxPool2d(2, 2)", "such as { stride = ... }" },
  { "nn.Linear(3, 4, false)", "such as { bias = ... }" },
  { "nn.Conv2d(3, 6, { kernel_size = 3 })", "and inputs, outputs, kernel before the table" },
  { "nn.Linear({ in_features = 3, out_features = 4 })", "and inputs, outputs before the table" },
  { "nn.CrossEntropyLoss({ size_average = false })", "it is 'reduction' here" },
  { "F.cross_entropy(model(x), y:float())", "target:long()" },
  { "F.unfold(gb.rand(1, 1, 4, 4), 2)", "gb.nn.functional.im2col(x, kernel)" },
  { "F.fold(gb.rand(1, 4, 9), 4, 2)", "gb.nn.functional.col2im(x, size, kernel)" },
  { "nn.utils.rnn.pack_padded_sequence(x, { 1 })", "{ lengths = list }" },
  { "optim.lr_scheduler.StepLR(opt, 10)", "gb.optim.lr" },
  { "optim.lr.CosineAnnealingLR(opt, 10)", "did you mean 'Cosine'" },
  { "optim.lr.Cosine(opt, { T_max = 10 })", "it is 'steps' here" },
  { "optim.lr.Linear(opt, { start_factor = 0.1 })", "it is 'first' here" },
  { "optim.lr.Lambda(opt, { lr_lambda = print })", "it is 'fn' here" },
  { "optim.SGD(model:parameters(), 0.1)", "such as { lr = ... }" },
  { "gb.zeros({ 2 }, { dtype = gb.long })", "the string \"int64\"" },
  { "gb.tensor({ 1 }, { dtype = 'long' })", "it is 'int64' here" },
  { "x:to('double')", "it is 'float64' here" },
  { "gb.FloatTensor({ 1 })", "gb.tensor(list)" },
  { "gb.cuda.manual_seed_all(1)", "gb.manual_seed(seed)" },
  { "gb.backends.cudnn.benchmark = true", "gb.set_deterministic" },
  { "gb.autocast('cuda')", "gb.amp.autocast" },
  { "gb.cuda.amp.GradScaler()", "gb.amp" },
  { "gb.amp.autocast({ device_type = 'cuda' })", "holds on every device" },
  { "gb.compile(model)", "ops run at once" },
  { "for row in x do end", "for i, row in ipairs(x:unbind()) do" },
  { "for i, row in pairs(x) do end", "for i, row in ipairs(x:unbind()) do" },
  { "x()", "a tensor is no function" },
  { "gb.no_grad(x)", "no_grad: 'fn' must be a function, got a tensor" },
  { "for a, b in gb.data.DataLoader(gb.data.TensorDataset(x:cpu())) do end", "for x, y in loader:iter() do" },
  { "return x.shape[0]", "position 0 of a shape: it is a list from 1 on" },
  { "return x.shape[-1]", "x:size(-1)" },
  { "return gb.max(x, x)", "of two tensors, element by element, it is gb.maximum(x, y)" },
  { "return x:min(x)", "gb.minimum(x, y)" },
  { "gb.amp.GradScaler():unscale(opt)", "a scaler has no field or method 'unscale'; did you mean 'unscale_'?" },
  { "model:add_module('a', nn.ReLU())", "it is model[name] = module here" },
  { "gb.io.save('x.pt', {})", "it is gb.save(path, tensors) here" }, { "return gb.inf", "it is math.huge here" },
  { "return gb.nan", "it is 0 / 0 here" }, { "return gb.pi", "it is math.pi here" },
  { "gb.optim.swa_utils.AveragedModel(model)", "it is gb.optim.Average and gb.optim.EMA here" },
  { "return x.sum()", "sum: 'x' is missing; a method is called with a colon, x:sum(...)" },
  { "return F.relu()", "relu: 'x' is missing" },
  { "return F.conv2d()", "conv2d: 'x' is missing (" },
  { "optim.SGD(model.parameters, { lr = 0.1 })", "as model:parameters() gives, got a function" },
  { "nn.BatchNorm2d(4)(x)", "BatchNorm2d expects x [n, c, h, w], got [5, 4]" },
  { "nn.Conv2d(1, 2, 3)(gb.rand(1, 28, 28))", "it has 3 (shape 1x28x28); unsqueeze(1) adds one in front" },
  { "gb.einsum('ij,jk', x, x)", "einsum: the label 'j' stands for sizes 4 and 5" },
  { "gb.einsum('ii', x)", "einsum: the label 'i' stands twice in one operand, for sizes 5 and 4" },
  { "gb.amp.autocast('cuda', print)", "'cuda' is a device; here stands a dtype, such as 'bfloat16'" },
  { "nn.Identity():get_submodule('head')", "Identity holds no module 'head'" },
  { "gb.io.save_checkpoint('c', { model = { state_dict = {} } })", "'model' has no state_dict" },
}

describe("a line of PyTorch's", function()
  local model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
  local x, y = gb.rand(5, 4), gb.tensor { 0, 1, 0, 1, 1 }
  local opt = gb.optim.SGD(model:parameters(), { lr = 0.1 })
  for _, line in ipairs(lines) do
    it(line[1], function()
      local chunk = assert(load("local gb, nn, F, optim, model, opt, x, y = ... " .. line[1], "=recipe"))
      local ok, why = pcall(chunk, gb, nn, nn.functional, gb.optim, model, opt, x, y)
      expect(ok):to_be(false)
      expect(why:sub(1, 9)):to_be("recipe:1:")
      expect(why:find(line[2], 1, true) ~= nil and line[2] or why):to_be(line[2])
    end)
  end
end)

describe("hooks", function()
  it("of modules come off by a call, or by remove()", function()
    for _, off in ipairs { function(h) h() end, function(h) h:remove() end } do
      for _, name in ipairs { "register_forward_hook", "register_forward_pre_hook" } do
        local layer, calls = nn.Linear(2, 2), 0
        local handle = layer[name](layer, function() calls = calls + 1 end)
        layer(gb.ones(1, 2))
        off(handle)
        off(handle)
        layer(gb.ones(1, 2))
        expect(calls):to_be(1)
      end
    end
  end)
end)

describe("lists that modules give", function()
  local model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
  it("may be a module's fields, which finds what they hold", function()
    local holder = nn.Module:extend("Holder")()
    holder.parts = model:children()
    expect(#holder:parameters()):to_be(4)
    expect(holder:describe():find("BatchNorm1d", 1, true) ~= nil):to_be(true)
    holder:load_state_dict(holder:state_dict())
  end)
  it("have no other keys than positions", function()
    for _, list in ipairs { model:parameters(), model:children(), model:modules(), model:buffers() } do
      local count = 0
      for key in pairs(list) do
        count = count + 1
        expect(math.type(key)):to_be("integer")
      end
      expect(count):to_be(#list)
    end
  end)
end)

gb.test.finish()
