# Answers with a digest of objects and buffers. Arguments: address, MiB.
import hashlib, http.server, os, sys

host, port = sys.argv[1].split(":")
mib = int(sys.argv[2])
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
    disable_nagle_algorithm = True

    def do_GET(self):
        body = digest() if self.path == "/sum" else objects[12345].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
server.serve_forever()
