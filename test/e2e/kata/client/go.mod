// Kata's runtime is on no module proxy. run.sh adds it, and the tree's own module, from their directories, to a copy of this file.
module github.com/longshore/longshore/test/e2e/kata/client

go 1.26.8
