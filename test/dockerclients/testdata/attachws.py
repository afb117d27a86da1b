# Attaches to a container by docker-py's websocket. docker-py gives its websocket no certificate, so this script does.
import os
import sys

import docker
import websocket

for name in "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE":  # requests prefers them
    os.environ.pop(name, None)
ca, cert, key, url = sys.argv[1:]
tls = docker.tls.TLSConfig(client_cert=(cert, key), ca_cert=ca, verify=True)
api = docker.APIClient(base_url=url, tls=tls, version="auto")
options = {"ca_certs": ca, "certfile": cert, "keyfile": key}
api._create_websocket_connection = lambda to: websocket.create_connection(to, sslopt=options)

c = api.create_container("busybox", "cat", stdin_open=True, detach=True, name="ws")["Id"]
ws = api.attach_socket(c, {"stdin": 1, "stdout": 1, "stream": 1}, ws=True)
api.start(c)
ws.send_binary(b"by websocket\n")
kind, data = ws.recv_data()
assert (kind, data) == (websocket.ABNF.OPCODE_BINARY, b"by websocket\n"), (kind, data)
ws.ping()
assert ws.recv_data_frame(control_frame=True)[0] == websocket.ABNF.OPCODE_PONG
ws.close()
assert api.inspect_container(c)["State"]["Running"]
later = api.attach_socket(c, {"stdout": 1, "stream": 1}, ws=True)
api.kill(c)
assert later.recv_data(control_frame=True)[0] == websocket.ABNF.OPCODE_CLOSE
api.remove_container(c)

for origin in "https://evil.example", "null":
    try:
        websocket.create_connection(api._url("/containers/{0}/attach/ws", "none").replace("https", "wss"), sslopt=options, origin=origin)
        sys.exit("a websocket of another page was opened")
    except websocket.WebSocketBadStatusException as e:
        assert e.status_code == 403, e
