// A registry that others wrote, on the port that the first argument names; it keeps all in memory.
package main

import (
	"log"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], registry.New(registry.WithReferrersSupport(true))))
}
