package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// reserves is the name of an entry that reserves the node's ranges against other programs.
const reserves = "longshore"

// SubIDs returns the entries of etc/subuid and etc/subgid that overlap with count ids from first, such as
// "alice (subuid 100000 to 165535)". Programs such as rootless podman give these ids to the users' containers.
func SubIDs(etc string, first, count uint64) (list []string, err error) {
	for _, name := range []string{"subuid", "subgid"} {
		body, err := os.ReadFile(filepath.Join(etc, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range subIDs(body) {
			if e.user != reserves && e.count > 0 && e.first < first+count && first < e.first+e.count {
				list = append(list, fmt.Sprintf("%s (%s %d to %d)", e.user, name, e.first, e.first+e.count-1))
			}
		}
	}
	return list, nil
}

type subID struct {
	user         string
	first, count uint64
}

// subIDs reads the lines USER:FIRST:COUNT. It skips others, as the programs that use the file do.
func subIDs(body []byte) (list []subID) {
	for line := range bytes.Lines(body) {
		parts := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(parts) != 3 || parts[0] == "" || strings.HasPrefix(parts[0], "#") {
			continue
		}
		first, err := strconv.ParseUint(parts[1], 10, 32)
		if err != nil {
			continue
		}
		count, err := strconv.ParseUint(parts[2], 10, 32)
		if err != nil {
			continue
		}
		list = append(list, subID{parts[0], first, count})
	}
	return list
}
