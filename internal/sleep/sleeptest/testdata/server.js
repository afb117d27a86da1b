// Answers with a digest of objects and buffers. Arguments: address, MiB.
const crypto = require('crypto');
const [host, port] = process.argv[2].split(':');
const mib = Number(process.argv[3]);
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
server.keepAliveTimeout = 0; // connections stay open
server.listen(Number(port), host);
