-- dcgan.lua - a generator and a discriminator that learn handwritten digits from each other, in mixed precision: two
-- optimizers, and one scaler for both losses.
--
--   gibbous recipes/dcgan.lua --data FOLDER     (the folder with the MNIST files, gzipped or not)
--
-- The networks and settings are those of Radford, Metz, Chintala 2016 (DCGAN), at 28 x 28. --images takes a grid of
-- digits per epoch. --score trains a small classifier and measures, in its features, the Frechet distance of written
-- and real digits (Heusel et al. 2017), and how evenly the classes are written (10 is best). PyTorch in float32
-- comes to a distance of 124 to 128 after 25 epochs of 8,000 digits; allow ten minutes on two cores.

local gb = require "gibbous"
local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data

local args = gb.args {
  { "data", "", "folder with the MNIST files", needed = true },
  { "precision", "bf16-mixed", "32-true, 16-mixed, bf16-mixed, 16-true or bf16-true" },
  { "device", gb.best_device(), "cpu, cuda or cuda:N" },
  { "epochs", 25, "passes over the digits", least = 1 }, { "batch", 128, "digits a step", least = 2 },
  { "lr", 2e-4, "of both Adams", least = 0 }, { "seed", 1, "same seed, same bits" },
  { "width", 32, "half the channels of the widest maps", least = 1 },
  { "noise", 64, "numbers a digit is made of", least = 1 },
  { "images", "", "folder that exists, for a grid of digits per epoch (\"\": none)" },
  { "score", false, "measure the digits at the end" },
  { "out", "dcgan.safetensors", "where the generator's weights go (\"\": nowhere)", writes = true },
  { "checkpoint", "", "write a checkpoint here after every epoch", writes = true },
  { "resume", "", "a checkpoint to continue from" },
}
gb.manual_seed(args.seed)
local precision = amp.precision(args.precision)
local width = args.width
local generator = nn.Sequential(
  nn.ConvTranspose2d(args.noise, 2 * width, 7, { bias = false }), nn.BatchNorm2d(2 * width, { activation = "relu" }),
  nn.ConvTranspose2d(2 * width, width, 4, { stride = 2, padding = 1, bias = false }),
  nn.BatchNorm2d(width, { activation = "relu" }),
  nn.ConvTranspose2d(width, 1, 4, { stride = 2, padding = 1, bias = false }), nn.Tanh()
)
local discriminator = nn.Sequential(
  nn.Conv2d(1, width, 4, { stride = 2, padding = 1, bias = false }), nn.LeakyReLU(0.2),
  nn.Conv2d(width, 2 * width, 4, { stride = 2, padding = 1, bias = false }), nn.BatchNorm2d(2 * width),
  nn.LeakyReLU(0.2), nn.Conv2d(2 * width, 1, 7, { bias = false }), nn.Flatten()
)
for _, model in ipairs { generator, discriminator } do
  model:apply(function(module)
    local weight = module.weight
    if weight then nn.init.normal_(weight, weight.ndim > 1 and 0 or 1, 0.02) end
  end)
  model:to(args.device, precision)
end

local train, test = data.mnist(args.data)
local loader = data.DataLoader(train, { batch_size = args.batch, shuffle = true, drop_last = true, seed = args.seed })
local options = { lr = args.lr, betas = { 0.5, 0.999 } }
local of_generator = optim.Adam(generator:parameters(), options)
local of_discriminator = optim.Adam(discriminator:parameters(), options)
local scaler = amp.GradScaler(precision)

local function noise(count) return gb.randn(count, args.noise, 1, 1, { device = args.device }) end
local function forward(model, x) return amp.autocast(precision, model, x) end

-- The loss of logits that should all be `truth`, 1 for real or 0 for written.
local function judged(logits, truth)
  return F.binary_cross_entropy_with_logits(logits, gb.full(logits.shape, truth, { device = args.device }))
end

-- One step of both networks; their losses. The scaler looks at each optimizer for itself, and updates once.
local function train_step(images)
  of_discriminator:zero_grad()
  local written = forward(generator, noise(images:size(1)))
  local loss = judged(forward(discriminator, images), 1) + judged(forward(discriminator, written:detach()), 0)
  scaler:scale(loss):backward()
  scaler:step(of_discriminator)
  of_generator:zero_grad()
  local fooled = judged(forward(discriminator, written), 1)
  scaler:scale(fooled):backward()
  scaler:step(of_generator)
  scaler:update()
  return loss, fooled
end

-- Digits of some noise, in 0 .. 1.
local function digits(z)
  generator:eval()
  local written = gb.no_grad(function() return forward(generator, z):float():cpu() end)
  generator:train()
  return (written + 1) / 2
end
local shown = noise(64) -- what each grid is made of

local parts = { generator = generator, discriminator = discriminator, scaler = scaler, loader = loader,
  of_generator = of_generator, of_discriminator = of_discriminator }
local first = 1
if args.resume ~= "" then first = gb.io.load_checkpoint(args.resume, parts).epoch + 1 end

for epoch = first, args.epochs do
  local bar = gb.progress(#loader, "epoch " .. epoch)
  for images in loader:iter(args.device) do
    local loss, fooled = train_step(images * 2 - 1)
    bar:update(1, { discriminator = loss, generator = fooled, scale = scaler })
  end
  bar:close()
  if args.images ~= "" then
    local grid = digits(shown):view(8, 8, 28, 28):transpose(2, 3):reshape(1, 8 * 28, 8 * 28)
    gb.io.save_image(("%s/epoch%02d.png"):format(args.images, epoch), grid)
  end
  if args.checkpoint ~= "" then
    parts.extra = { epoch = epoch }
    gb.io.save_checkpoint(args.checkpoint, parts)
  end
end

if args.out ~= "" then gb.save(args.out, generator:state_dict()) end
if not args.score then return end

-- A classifier of digits: 64 features, and what they say of the class.
gb.manual_seed(1234) -- one classifier for all runs
local features = nn.Sequential(
  nn.Conv2d(1, 16, 3, { padding = 1, activation = "relu" }), nn.MaxPool2d(2),
  nn.Conv2d(16, 32, 3, { padding = 1, activation = "relu" }), nn.MaxPool2d(2),
  nn.Flatten(), nn.Linear(32 * 7 * 7, 64, { activation = "relu" }))
local classify = nn.Linear(64, 10)
local judge = nn.Sequential(features, classify):to(args.device)
local opt = optim.Adam(judge:parameters())
for _ = 1, 3 do
  for x, y in data.DataLoader(train, { batch_size = 100, shuffle = true, seed = 1 }):iter(args.device) do
    opt:zero_grad()
    F.cross_entropy(judge(x), y):backward()
    opt:step()
  end
end

-- Mean and covariance of the features of digits, and the mean probabilities of their classes.
local function statistics(images)
  return gb.no_grad(function()
    local found = features(images:to(args.device))
    local x = found:double():cpu()
    return x:mean(1), x:t():cov(), classify(found):softmax(-1):mean(1)
  end)
end

-- |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)): the eigenvalues of C1 C2 are those of R C2 R, where R R is C1.
local function frechet(m1, c1, m2, c2)
  local values, vectors = gb.linalg.eigh(c1)
  local root = (vectors * values:clamp(0):sqrt()):matmul(vectors:t())
  local cross = gb.linalg.eigvalsh(root:matmul(c2):matmul(root)):clamp(0):sqrt():sum()
  return ((m1 - m2):square():sum() + c1:diagonal():sum() + c2:diagonal():sum() - 2 * cross):item()
end

local m1, c1 = statistics((data.tensors(test)))
local m2, c2, classes = statistics(digits(noise(#test)))
local evenness = (-gb.xlogy(classes, classes):sum()):exp():item()
print(("frechet distance %.1f, classes %.2f"):format(frechet(m1, c1, m2, c2), evenness))
