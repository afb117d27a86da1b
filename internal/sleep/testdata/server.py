# Answers with a digest of 64 MiB of objects and buffers.
import hashlib, http.server, os, sys

mib = int(sys.argv[1])
objects = {i: ("value %d" % i) * 3 for i in range(mib * 4000)}
buffers = [os.urandom(1 << 16) for _ in range(mib * 8)]


def digest():
    h = hashlib.sha256()
    for b in buffers:
        h.update(b)
    for i in range(0, len(objects), 97):
        h.update(objects[i].encode())
    return h.hexdigest().encode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = digest() if self.path == "/sum" else objects[12345].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
