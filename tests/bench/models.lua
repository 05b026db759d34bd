-- models.lua - our half of the group models, as measure.lua says: one training step of each, with AdamW, and its
-- products (of layers, attention, convolutions by direct sums) at the speed of a large one: its floor, where nothing
-- takes fewer multiplications. peer_models.py has the same models of torchvision's and transformers'.

local gb = require "gibbous"
local measure = dofile("tests/bench/measure.lua")
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim
local precision = measure.precision
local VOCABULARY, WIDTH, TIME = 1000, 256, 128

-- A step of a module that gives logits [..., classes] for x.
local function step(name, net, x, y)
  net:to("cpu", precision)
  local opt, scaler = optim.AdamW(net:parameters(), { lr = 1e-4 }), amp.GradScaler(precision)
  local function run()
    opt:zero_grad()
    local loss = amp.autocast(precision, function()
      local logits = net(x)
      return F.cross_entropy(logits:reshape(-1, logits:size(-1)), y)
    end)
    scaler:scale(loss):backward()
    scaler:step(opt)
    scaler:update()
    loss:item()
  end
  local case = ("%s %s"):format(name, measure.spelled)
  measure.report(case, run)
  measure.floor(case, 0, amp.audit(net, run, { print = false }).operations / 2, measure.dtype)
end

-- {==== pictures ====

-- A convolution that keeps the size but for its stride, and its norm with an activation.
local function conv(inputs, outputs, kernel, stride, groups, activation)
  return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, {
    stride = stride, padding = kernel // 2, groups = groups or 1, bias = false,
  }), nn.BatchNorm2d(outputs, { activation = activation }))
end

local Residual = nn.Module:extend("Residual")
function Residual:init(inputs, outputs, stride)
  self.body, self.last = conv(inputs, outputs, 3, stride, 1, "relu"), conv(outputs, outputs, 3, 1, 1, "relu")
  if stride > 1 then self.project = conv(inputs, outputs, 1, stride) end
end
function Residual:forward(x)
  local layer, norm = self.last[1], self.last[2]
  return norm(layer(self.body(x)), self.project and self.project(x) or x)
end

-- The global mean of maps, and the logits.
local Head = nn.Module:extend("Head")
function Head:init(channels) self.linear = nn.Linear(channels, 10) end
function Head:forward(x) return self.linear(x:mean({ 3, 4 })) end

local function resnet18()
  local net, channels = nn.Sequential(conv(3, 64, 7, 2, 1, "relu"), nn.MaxPool2d(3, { stride = 2, padding = 1 })), 64
  for stage = 0, 3 do
    for i = 1, 2 do
      net:append(Residual(channels, 64 << stage, stage > 0 and i == 1 and 2 or 1))
      channels = 64 << stage
    end
  end
  return net:append(Head(channels))
end

local MBConv = nn.Module:extend("MBConv")
function MBConv:init(inputs, outputs, widen, kernel, stride)
  local width = inputs * widen
  self.body = nn.Sequential()
  if widen > 1 then self.body:append(nn.Sequential(conv(inputs, width, 1, 1), nn.SiLU())) end
  self.body:append(nn.Sequential(conv(width, width, kernel, stride, width), nn.SiLU()))
  self.body:append(nn.SqueezeExcite(width, inputs // 4, { activation = "silu" }))
  self.body:append(conv(width, outputs, 1, 1))
  self.keeps = stride == 1 and inputs == outputs
end
function MBConv:forward(x)
  local y = self.body(x)
  return self.keeps and x + y or y
end

-- Stages of EfficientNet-B0: how much a block widens, its kernel, stride, channels, and how many there are.
local stages = {
  { 1, 3, 1, 16, 1 }, { 6, 3, 2, 24, 2 }, { 6, 5, 2, 40, 2 }, { 6, 3, 2, 80, 3 },
  { 6, 5, 1, 112, 3 }, { 6, 5, 2, 192, 4 }, { 6, 3, 1, 320, 1 },
}

local function efficientnet()
  local net, channels = nn.Sequential(conv(3, 32, 3, 2), nn.SiLU()), 32
  for _, stage in ipairs(stages) do
    local widen, kernel, stride, outputs, count = table.unpack(stage)
    for i = 1, count do
      net:append(MBConv(channels, outputs, widen, kernel, i == 1 and stride or 1))
      channels = outputs
    end
  end
  return net:append(nn.Sequential(conv(channels, 1280, 1, 1), nn.SiLU())):append(Head(1280))
end

-- Two convolutions, each with a norm.
local function double(inputs, outputs)
  return nn.Sequential(conv(inputs, outputs, 3, 1, 1, "relu"), conv(outputs, outputs, 3, 1, 1, "relu"))
end

-- Four times halved, the logits of each pixel last.
local UNet = nn.Module:extend("UNet")
function UNet:init(width, levels)
  self.down, self.up, self.merge = {}, {}, {}
  for level = 1, levels do
    self.down[level] = double(level == 1 and 3 or width << (level - 2), width << (level - 1))
    self.up[level] = nn.ConvTranspose2d(width << level, width << (level - 1), 2, { stride = 2 })
    self.merge[level] = double(width << level, width << (level - 1))
  end
  self.middle = double(width << (levels - 1), width << levels)
  self.head = nn.Conv2d(width, 4, 1)
end
function UNet:forward(x)
  local kept = {}
  for level, block in ipairs(self.down) do
    kept[level] = block(x)
    x = F.max_pool2d(kept[level], 2)
  end
  x = self.middle(x)
  for level = #kept, 1, -1 do x = self.merge[level](gb.cat({ kept[level], self.up[level](x) }, 2)) end
  return self.head(x):permute({ 1, 3, 4, 2 })
end

local ViT = nn.Module:extend("ViT")
function ViT:init(width, layers, heads, patch, pixels)
  self.width = width
  self.patches = nn.PatchEmbed(3, width, patch)
  self.class = nn.Parameter(gb.zeros(1, 1, width))
  self.positions = nn.Parameter(gb.randn(1, (pixels // patch) ^ 2 // 1 + 1 | 0, width) * 0.02)
  self.blocks = nn.Sequential()
  for _ = 1, layers do self.blocks:append(nn.TransformerBlock(width, heads, { activation = "gelu", eps = 1e-12 })) end
  self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)
end
function ViT:forward(x)
  x = self.patches(x)
  x = gb.cat({ self.class:expand(x:size(1), 1, self.width):to(x.dtype), x }, 2) + self.positions
  return self.head(self.norm(self.blocks(x)):select(2, 1))
end

-- ====}

-- {==== texts ====

local Bert = nn.Module:extend("Bert")
function Bert:init()
  self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)
  self.norm, self.blocks = nn.LayerNorm(WIDTH, { eps = 1e-12 }), nn.Sequential()
  for _ = 1, 4 do
    self.blocks:append(nn.TransformerBlock(WIDTH, 4, { norm_first = false, activation = "gelu", eps = 1e-12 }))
  end
  self.transform = nn.Sequential(nn.Linear(WIDTH, WIDTH, { activation = "gelu" }), nn.LayerNorm(WIDTH))
  self.bias = nn.Parameter(gb.zeros(VOCABULARY))
end
function Bert:forward(ids)
  local x = self.norm(self.words(ids) + self.places(gb.arange(ids:size(2), { dtype = "int64" })))
  return F.linear(self.transform(self.blocks(x)), self.words.weight, self.bias)
end

local function llama()
  local net = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH))
  for _ = 1, 4 do
    net:append(nn.TransformerBlock(WIDTH, 8, {
      kv_heads = 2, norm = "rms", mlp = "swiglu", hidden = 688, rotary = true, is_causal = true, bias = false,
      eps = 1e-6,
    }))
  end
  return net:append(nn.RMSNorm(WIDTH, { eps = 1e-6 })):append(nn.Linear(WIDTH, VOCABULARY, { bias = false }))
end

local Lstm = nn.Module:extend("Lstm")
function Lstm:init(width)
  self.words, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
  self.rnn = nn.LSTM(width, width, { num_layers = 2, batch_first = true })
end
function Lstm:forward(ids) return self.head((self.rnn(self.words(ids)))) end

-- ====}

local function pictures(batch, pixels) return gb.randn(batch, 3, pixels, pixels), gb.randint(0, 10, { batch }) end
local function texts(batch, time)
  return gb.randint(0, VOCABULARY, { batch, time }), gb.randint(0, VOCABULARY, { batch * time })
end

step("ResNet-18 32x32", resnet18(), pictures(32, 32))
step("ResNet-18 64x64", resnet18(), pictures(16, 64))
step("EfficientNet-B0 64x64", efficientnet(), pictures(8, 64))
step("ViT", ViT(192, 6, 3, 8, 64), pictures(8, 64))
step("BERT", Bert(), texts(4, TIME))
step("Llama", llama(), texts(4, TIME))
step("LSTM", Lstm(256), texts(16, 64))
step("U-Net 64x64", UNet(16, 3), gb.randn(8, 3, 64, 64), gb.randint(0, 4, { 8 * 64 * 64 }))
