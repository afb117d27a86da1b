// Drives the node by dockerode, and asserts what it returns. DOCKER_HOST names the socket.
'use strict';

const assert = require('node:assert/strict');
const { PassThrough } = require('node:stream');
const { finished } = require('node:stream/promises');
const Docker = require('dockerode');
const tar = require('tar-stream');

const docker = new Docker();

// text reads a stream to its end.
async function text(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces).toString();
}

// sink is a stream that keeps all that is written to it.
function sink() {
  const stream = new PassThrough();
  const pieces = [];
  stream.on('data', (piece) => pieces.push(piece));
  stream.text = () => Buffer.concat(pieces).toString();
  return stream;
}

// split takes the frames of a stream apart, until it ends.
async function split(stream) {
  const out = sink();
  const err = sink();
  docker.modem.demuxStream(stream, out, err);
  await new Promise((resolve, reject) => stream.on('end', resolve).on('error', reject));
  return [out.text(), err.text()];
}

async function pull() {
  const events = await new Promise((resolve, reject) => {
    docker.pull('busybox:latest', (err, stream) => {
      if (err) return reject(err);
      return docker.modem.followProgress(stream, (e, all) => (e ? reject(e) : resolve(all)));
    });
  });
  assert.ok(events.some((e) => e.status === 'Pull complete' && e.id), JSON.stringify(events));
  await assert.rejects(
    new Promise((resolve, reject) => {
      docker.pull('busybox:none', (err, stream) => (err ? reject(err) : docker.modem.followProgress(stream, (e) => (e ? reject(e) : resolve()))));
    }),
    /not found/,
  );
}

async function run() {
  const out = sink();
  const err = sink();
  const [end, container] = await docker.run('busybox', ['sh', '-c', 'echo out; echo err >&2; exit 3'], [out, err], { Tty: false });
  await Promise.all([finished(out), finished(err)]); // run does not wait for the end of the output
  assert.deepEqual([end.StatusCode, out.text(), err.text()], [3, 'out\n', 'err\n']);
  await container.remove();

  const terminal = sink();
  const [ended, tty] = await docker.run('busybox', ['tty'], terminal);
  await finished(terminal);
  assert.equal(ended.StatusCode, 0);
  assert.match(terminal.text(), /^\/dev\/pts\/\d+\r\n$/);
  await tty.remove();
}

async function attach() {
  const container = await docker.createContainer({
    Image: 'busybox', Cmd: ['sh', '-c', 'cat; exit 4'], OpenStdin: true, StdinOnce: true, AttachStdin: true, AttachStdout: true, AttachStderr: true,
  });
  const stream = await container.attach({ stream: true, stdin: true, stdout: true, stderr: true, hijack: true });
  const read = split(stream);
  const wait = container.wait({ condition: 'next-exit' });
  await container.start();
  stream.write('one\n');
  stream.end('two\n');
  assert.deepEqual(await read, ['one\ntwo\n', '']);
  assert.equal((await wait).StatusCode, 4);
  assert.deepEqual(await container.logs({ stdout: true, stderr: true }).then((b) => b.subarray(8, 12).toString()), 'one\n');
  await container.remove();
}

async function exec(container) {
  const made = await container.exec({ Cmd: ['sh', '-c', 'cat; echo err >&2; exit 5'], AttachStdin: true, AttachStdout: true, AttachStderr: true });
  const stream = await made.start({ hijack: true, stdin: true });
  const read = split(stream);
  stream.end('in\n');
  assert.deepEqual(await read, ['in\n', 'err\n']);
  const info = await made.inspect();
  assert.deepEqual([info.Running, info.ExitCode], [false, 5]);

  const plain = await container.exec({ Cmd: ['echo', 'plain'], AttachStdout: true });
  assert.deepEqual(await split(await plain.start({})), ['plain\n', '']);
  await assert.rejects(plain.start({ Detach: true }), (e) => e.statusCode === 409);
}

async function archive(container) {
  const pack = tar.pack();
  pack.entry({ name: 'f', uid: 5, gid: 6, mode: 0o640 }, 'abc');
  pack.finalize();
  await container.putArchive(pack, { path: '/tmp' });
  const extract = tar.extract();
  const found = [];
  extract.on('entry', (header, stream, next) => {
    text(stream).then((body) => {
      found.push([header.name, header.uid, header.gid, header.mode, body]);
      next();
    });
  });
  const done = new Promise((resolve, reject) => extract.on('finish', resolve).on('error', reject));
  (await container.getArchive({ path: '/tmp/f' })).pipe(extract);
  await done;
  assert.deepEqual(found, [['f', 5, 6, 0o640, 'abc']]);
  await assert.rejects(container.getArchive({ path: '/none' }), (e) => e.statusCode === 404);
}

async function main() {
  await pull();
  await run();
  await attach();

  const events = await docker.getEvents({ filters: { type: ['container'], label: ['of=node'] } });
  const container = await docker.createContainer({ Image: 'busybox', Cmd: ['sleep', '1000'], Labels: { of: 'node' }, name: 'node1' });
  await container.start();
  await exec(container);
  await archive(container);
  assert.equal((await docker.listContainers({ filters: { label: ['of=node'] } }))[0].Names[0], '/node1');
  await container.stop({ t: 0 });
  await assert.rejects(container.stop(), (e) => e.statusCode === 304);
  await container.remove();
  let seen = '';
  for await (const piece of events) {
    seen += piece;
    if (seen.includes('"destroy"')) break;
  }
  const actions = seen.trim().split('\n').map((line) => JSON.parse(line).Action);
  let at = 0;
  for (const want of ['create', 'start', 'exec_create: ', 'exec_start: ', 'extract-to-dir', 'archive-path', 'kill', 'die', 'stop', 'destroy']) {
    const next = actions.findIndex((action, i) => i >= at && action.startsWith(want));
    assert.ok(next >= 0, `no ${want} in its place in ${actions}`);
    at = next + 1;
  }
  await assert.rejects(docker.getContainer('none').inspect(), (e) => e.statusCode === 404 && e.reason === 'no such container');
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
