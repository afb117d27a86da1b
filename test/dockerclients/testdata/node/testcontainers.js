// Drives the node by testcontainers, and asserts what it returns. DOCKER_HOST names the socket. The last containers are left to
// the reaper.
'use strict';

const assert = require('node:assert/strict');
const { GenericContainer, Network, Wait } = require('testcontainers');

// text reads a stream to its end.
async function text(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(Buffer.from(piece));
  return Buffer.concat(pieces).toString();
}

async function main() {
  const network = await new Network().start();
  const web = await new GenericContainer('busybox')
    .withNetwork(network).withNetworkAliases('web').withExposedPorts(80).withEnvironment({ A: 'b' })
    .withCopyContentToContainer([{ content: 'served\n', target: '/www/page', mode: 0o640 }])
    .withCommand(['sh', '-c', 'echo ready; exec httpd -f -p 80 -h /www'])
    .withHealthCheck({ test: ['CMD', 'wget', '-q', '-O-', 'http://127.0.0.1/page'], interval: 200 })
    .withWaitStrategy(Wait.forAll([Wait.forLogMessage('ready'), Wait.forListeningPorts(), Wait.forHttp('/page', 80), Wait.forHealthCheck()]))
    .start();
  const page = await fetch(`http://${web.getHost()}:${web.getMappedPort(80)}/page`);
  assert.equal(await page.text(), 'served\n');
  assert.deepEqual(web.getNetworkNames().sort(), ['bridge', network.getName()].sort()); // it connects containers with aliases later

  const ran = await web.exec(['sh', '-c', 'id -u; pwd; echo $A; exit 7'], { user: '12', workingDir: '/bin', env: { A: 'c' } });
  assert.deepEqual([ran.exitCode, ran.output], [7, '12\n/bin\nc\n']);
  await web.copyContentToContainer([{ content: 'copied', target: '/srv/file' }]);
  assert.equal((await web.exec(['cat', '/srv/file'])).output, 'copied');
  assert.ok((await text(await web.copyArchiveFromContainer('/srv/file'))).includes('copied'));

  const peer = await new GenericContainer('busybox').withNetwork(network)
    .withCommand(['wget', '-q', '-O-', 'http://web/page']).withWaitStrategy(Wait.forOneShotStartup()).start();
  assert.equal(await text(await peer.logs()), 'served\n');
  await web.restart({ timeout: 0 });
  assert.equal((await web.exec(['cat', '/srv/file'])).output, 'copied');
  await assert.rejects(new GenericContainer('busybox:none').start(), /not found/);
  await peer.stop();
  console.log('left');
}

const busy = setInterval(() => {}, 1000); // testcontainers does not keep node alive for the logs that it reads
main().finally(() => clearInterval(busy)).catch((e) => {
  console.error(e);
  process.exit(1);
});
