package compose

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"

	"github.com/longshore/longshore/internal/cli/composefile"
)

// keyBytes is the length of the user's key.
const keyBytes = 32

// keyed replaces the hashes of a project's services by ones that need a key. A service's settings may have secrets, and its hash
// becomes a label, which every reader of the node sees: without a key a reader could find a weak secret by trying.
func keyed(p *composefile.Project, key []byte) {
	for i := range p.Services {
		s := &p.Services[i]
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(s.Hash))
		s.Hash = hex.EncodeToString(mac.Sum(nil))
		s.Request.Labels[composefile.LabelHash] = s.Hash
	}
}

// ownKey returns the key of this user, which it makes at the first use.
func ownKey(getenv func(string) string) ([]byte, error) {
	dir, err := stateDir(getenv)
	if err != nil {
		return nil, fmt.Errorf("find a directory for the key of labels: %w: set XDG_STATE_HOME", err)
	}
	path := filepath.Join(dir, "longshore", "compose.key")
	key, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKey(path); err == nil {
			key, err = readKey(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the key of labels: %w", err)
	}
	return key, nil
}

// stateDir returns the user's directory for data that programs keep. Services often have no HOME.
func stateDir(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home := getenv("HOME")
	if !filepath.IsAbs(home) {
		u, err := user.Current()
		if err != nil {
			return "", err
		}
		home = u.HomeDir
	}
	return filepath.Join(home, ".local", "state"), nil
}

func readKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(string(text))
	if err != nil || len(key) != keyBytes {
		return nil, fmt.Errorf("%s is not a key: remove it, and up makes another one and replaces the containers", path)
	}
	return key, nil
}

// makeKey makes a key, unless another command makes it at the same time.
func makeKey(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // it never fails
	f, err := os.CreateTemp(filepath.Dir(path), ".compose.key-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(hex.EncodeToString(key))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) { // the other one's key is as good
		return err
	}
	return nil
}
