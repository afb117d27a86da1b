package egress

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// The hosts that the programs' documentation says they need, with other domains.
var programHosts = []string{"api.example.com", "pypi.example", "files.pypi.example", "registry.npm.example", "git.example", "deb.example", "proxy.go.example"}

// program is a client that people run, its list, and its request.
type program struct {
	name   string
	list   []string
	script string // prints hello
	// Parts of its error: refused for a refused name, closed for a known name with a refused address.
	refused, closed string
}

func programs() []program {
	const tls = "export CURL_CA_BUNDLE=/t/ca.pem GIT_SSL_CAINFO=/t/ca.pem SSL_CERT_FILE=/t/ca.pem NODE_EXTRA_CA_CERTS=/t/ca.pem PIP_CERT=/t/ca.pem HOME=/tmp npm_config_cache=/tmp/npm GOCACHE=/tmp/go GOPATH=/tmp/gopath; mkdir -p /tmp; "
	return []program{
		{"curl", []string{"api.example.com:443"}, tls + "curl -sS https://api.example.com/", "Could not resolve host", "Couldn't connect to server"},
		{"git", []string{"git.example:443"}, tls + "git ls-remote https://git.example/repo.git", "Could not resolve host", "Couldn't connect to server"},
		{"apt-get", []string{"deb.example:80"}, "mkdir -p /tmp/apt/lists/partial /tmp/apt/cache; echo 'deb [trusted=yes] http://deb.example ./' > /tmp/apt/list; " +
			"apt-get -q -o APT::Sandbox::User=root -o Dir::Etc=/tmp/apt -o Dir::Etc::SourceList=/tmp/apt/list -o Dir::State::Lists=/tmp/apt/lists -o Dir::State::Status=/dev/null -o Dir::Cache=/tmp/apt/cache -o APT::Update::Error-Mode=any -o Acquire::Retries=0 update && cat /tmp/apt/lists/*Packages*", "Could not resolve", "Connection refused"},
		{"pip", []string{"pypi.example:443", "files.pypi.example:443"}, tls + "python3 -m pip download --no-input --disable-pip-version-check --retries 1 --index-url https://pypi.example/simple -d /tmp/w hello", "Name or service not known", "Connection refused"},
		{"npm", []string{"registry.npm.example:443"}, tls + "npm view hello description --fetch-retries 0 --no-update-notifier --registry https://registry.npm.example/", "ENOTFOUND", "ECONNREFUSED"},
		{"go", []string{"proxy.go.example:443"}, tls + "cd /tmp && GOTOOLCHAIN=local GOFLAGS=-mod=mod GONOSUMDB='*' GOPROXY=https://proxy.go.example go list -m -versions example.com/hello@v1.0.0", "no such host", "connection refused"},
		{"node", []string{"api.example.com:443"}, tls + "node -e \"require('https').get('https://api.example.com/', r => r.pipe(process.stdout)).on('error', e => { console.error(e.message); process.exit(1) })\"", "ENOTFOUND", "ECONNREFUSED"},
		{"java", []string{"api.example.com:443"}, tls + "java -Djavax.net.ssl.trustStore=/t/trust.p12 -Djavax.net.ssl.trustStorePassword=changeit /t/Get.java", "UnknownHostException", "Connection refused"},
	}
}

// TestProgramsUnderTheirLists runs unmodified clients of the machine with the list that each one needs, and without its name.
func TestProgramsUnderTheirLists(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t)
		networktest.Run(t, "ip addr add "+apiAddr+" dev world")
		networktest.Run(t, "ip addr add "+otherAddr+" dev world")
		for _, h := range programHosts {
			w.Set(h, apiAddr)
		}
		dir := t.TempDir()
		serveHTTP(t, dir)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image := n.Busybox(t)
		mounts := []string{"-v", dir + ":/t:ro"}
		for _, path := range []string{"/usr", "/lib", "/lib64", "/etc/alternatives", "/etc/java-17-openjdk", "/root/.pyenv"} {
			if _, err := os.Stat(path); err == nil {
				mounts = append(mounts, "-v", path+":"+path+":ro")
			}
		}
		run := func(p program, more ...string) (string, time.Duration, error) {
			args := append([]string{"run", "--rm", "-e", "PATH=" + os.Getenv("PATH") + ":/usr/local/go/bin:/usr/bin:/bin"}, mounts...)
			began := time.Now()
			out, err := n.CLI(append(append(args, more...), image, "/bin/sh", "-c", "("+p.script+") 2>&1")...)
			return out, time.Since(began), err
		}
		for _, p := range programs() {
			t.Run(p.name, func(t *testing.T) {
				if !installed(p.name) {
					t.Skipf("%s is not installed", p.name)
				}
				var list, closed []string
				for _, e := range p.list {
					host, _, _ := strings.Cut(e, ":")
					list, closed = append(list, "--egress", e), append(closed, "--add-host", host+":"+otherAddr)
				}
				out, took, err := run(p, list...)
				if err != nil || !strings.Contains(out, "hello") {
					t.Errorf("with its list %v: %v: %s", p.list, err, out)
				}
				for _, refusal := range []struct {
					what, want string
					args       []string
				}{{"name", p.refused, nil}, {"address", p.closed, closed}} {
					out, refused, err := run(p, append(refusal.args, "--egress", "elsewhere.example")...)
					if err == nil || !strings.Contains(out, refusal.want) {
						t.Errorf("its %s is not in the list: %v, want %s: %s", refusal.what, err, refusal.want, out)
					}
					// A question that nobody answers takes a program ten seconds, and a connection two minutes.
					if most := 3*took + roottest.Patience()/12; refused > most {
						t.Errorf("the error for a refused %s comes after %v, at most %v", refusal.what, refused, most)
					}
					t.Logf("the %s is refused after %v, the request took %v: %s", refusal.what, refused.Round(time.Millisecond), took.Round(time.Millisecond), line(out, refusal.want))
				}
			})
		}
		n.Check()
	})
}

// line returns the line of a text that contains a part.
func line(text, part string) string {
	for l := range strings.Lines(text) {
		if strings.Contains(l, part) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

func installed(name string) bool {
	if name == "pip" {
		return exec.CommandContext(context.Background(), "python3", "-m", "pip", "--version").Run() == nil
	}
	_, err := exec.LookPath(name)
	return err == nil
}

// serveHTTP answers for all hosts, and writes the certificate of its authority and the programs' files into dir.
func serveHTTP(t *testing.T, dir string) {
	t.Helper()
	cert := authority(t, dir)
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"hello.py": "", "hello-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n",
		"hello-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "hello-1.0.dist-info/RECORD": "",
	} {
		f, err := z.Create(name)
		if err == nil {
			_, err = f.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sha := strings.Repeat("0123456789abcdef", 3)[:40]
	answers := map[string]string{
		"api.example.com/":                                  "hello\n",
		"git.example/repo.git/info/refs":                    sha + "\trefs/heads/hello\n",
		"git.example/repo.git/HEAD":                         "ref: refs/heads/hello\n",
		"deb.example/./Packages":                            "Package: hello\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\nFilename: ./hello.deb\nSize: 1\n\n",
		"deb.example/Packages":                              "Package: hello\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\nFilename: ./hello.deb\nSize: 1\n\n",
		"pypi.example/simple/hello/":                        `<a href="https://files.pypi.example/hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a>`,
		"files.pypi.example/hello-1.0-py3-none-any.whl":     wheel.String(),
		"registry.npm.example/hello":                        `{"name":"hello","description":"hello","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"hello","version":"1.0.0","description":"hello","dist":{"tarball":"https://registry.npm.example/hello.tgz"}}}}`,
		"proxy.go.example/example.com/hello/@v/list":        "v1.0.0\n",
		"proxy.go.example/example.com/hello/@v/v1.0.0.info": `{"Version":"v1.0.0"}`,
		"proxy.go.example/example.com/hello/@v/v1.0.0.mod":  "module example.com/hello\n",
	}
	handler := http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		text, ok := answers[req.Host+req.URL.Path]
		if !ok {
			http.NotFound(rw, req)
			return
		}
		switch {
		case strings.HasSuffix(req.URL.Path, "/hello") && strings.HasPrefix(text, "{"):
			rw.Header().Set("Content-Type", "application/json")
		case strings.HasSuffix(req.URL.Path, "/hello/"):
			rw.Header().Set("Content-Type", "text/html")
		default:
			rw.Header().Set("Content-Type", "text/plain")
		}
		_, _ = rw.Write([]byte(text))
	})
	for _, port := range []string{"80", "443"} {
		l, err := net.Listen("tcp", net.JoinHostPort(apiAddr, port))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
		t.Cleanup(func() { _ = s.Close() })
		go func() {
			if port == "443" {
				_ = s.ServeTLS(l, "", "")
			} else {
				_ = s.Serve(l)
			}
		}()
	}
	get := "class Get { public static void main(String[] a) throws Exception { System.out.write(new java.net.URL(\"https://api.example.com/\").openStream().readAllBytes()); System.out.flush(); } }\n"
	if err := os.WriteFile(filepath.Join(dir, "Get.java"), []byte(get), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("keytool"); err == nil {
		networktest.Run(t, fmt.Sprintf("keytool -importcert -noprompt -alias ca -file %[1]s/ca.pem -keystore %[1]s/trust.p12 -storetype PKCS12 -storepass changeit", dir))
	}
}

// authority makes a certificate for all hosts, and writes its authority's into dir.
func authority(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	caKey, serverKey := key(), key()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test server"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: programHosts,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, &serverKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o644); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{serverDER, caDER}, PrivateKey: serverKey}
}
