// Answers with a digest of objects and buffers.
const crypto = require('crypto');
const mib = Number(process.argv[2]);
const objects = new Map();
for (let i = 0; i < mib * 2000; i++) objects.set(i, { name: `value ${i}`, list: [i, i + 1] });
const buffers = Array.from({ length: mib * 8 }, () => crypto.randomBytes(1 << 16));
const digest = () => {
  const h = crypto.createHash('sha256');
  for (const b of buffers) h.update(b);
  for (let i = 0; i < objects.size; i += 97) h.update(JSON.stringify(objects.get(i)));
  return h.digest('hex');
};
const server = require('http').createServer((q, r) => r.end(q.url === '/sum' ? digest() : objects.get(12345).name));
server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`));
