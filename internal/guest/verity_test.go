package guest

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestVerity(t *testing.T) {
	root := strings.Repeat("0a", 32)
	options := func(more ...string) []string {
		list := []string{verityEnabled, "ro", verityValue + "roothash=" + root, verityValue + "hashoffset=8192"}
		for _, m := range more {
			list = append(list, verityValue+m)
		}
		return list
	}
	for name, c := range map[string]struct {
		more []string
		want string
	}{
		"defaults":        {nil, "1 /dev/x /dev/x 4096 4096 2 3 sha256 " + root + " -"},
		"no superblock":   {[]string{"no-superblock=true"}, "1 /dev/x /dev/x 4096 4096 2 2 sha256 " + root + " -"},
		"everything else": {[]string{"salt=ff", "hashtype=0", "blocksize=512", "hashsize=1024", "algorithm=sha512"}, "0 /dev/x /dev/x 512 1024 16 9 sha512 " + root + " ff"},
		"no salt":         {[]string{"salt=-"}, "1 /dev/x /dev/x 4096 4096 2 3 sha256 " + root + " -"},
	} {
		v, err := readVerity(options(c.more...))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if sectors, line := v.table("/dev/x"); line != c.want || sectors != 16 {
			t.Errorf("%s: %d %q, want %q", name, sectors, line, c.want)
		}
	}
	for _, more := range []string{"salt=x y", "roothash=zz", "hashoffset=-1", "hashoffset=100", "hashoffset=0", "blocksize=1000", "blocksize=0", "hashtype=2", "algorithm=a b", "algorithm=", "no-superblock=perhaps", "other=1"} {
		if _, err := readVerity(options(more)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", more, err)
		}
	}
	if _, err := readVerity(options()[1:]); !errdefs.IsInvalidArgument(err) { // nothing is mounted unverified that has a root hash
		t.Errorf("a root hash, not enabled: %v", err)
	}
	if v, err := readVerity([]string{"ro"}); v != nil || err != nil {
		t.Errorf("none: %v, %v", v, err)
	}
	if _, _, err := (&verity{block: 512, hashBlock: 512}).open(t.TempDir(), "/dev/x", "x"); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "no device mapper") {
		t.Errorf("without a device mapper: %v", err)
	}
}
