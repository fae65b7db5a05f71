import { defineConfig } from "vite";

// Fixed names and no source maps: dist is committed, and the server sends an ETag with each file.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // light-dark()
    outDir: "dist",
    emptyOutDir: true,
    sourcemap: false,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: { entryFileNames: "app.js", chunkFileNames: "[name].js", assetFileNames: "app[extname]" },
    },
  },
  server: {
    proxy: { "/v1": "http://127.0.0.1:8000", "/metrics": "http://127.0.0.1:8000", "/version": "http://127.0.0.1:8000" },
  },
});
